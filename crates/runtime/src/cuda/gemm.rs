//! Matrix products by the vendor's library, where it is there.
//!
//! ```text
//!   ours, row by row      c[m, n] = a[m, k] b[k, n]
//!   theirs, by columns    d[n, m] = b'[n, k] a'[k, m]      the same bytes, operands exchanged; one that runs the other way is transposed by the library
//! ```
//!
//! A recorded launch of the library's cannot be given other addresses: a call that is recorded is recorded again where its tensors moved, and callables that are recorded use the plan's own kernel. So
//! does what the library refuses. No memory is lent to it: two calls may run at once.

use super::abi::CuStream;
use super::context::Context;
use super::library::{CUBLAS_LT, opened};
use super::module::CudaKernel;
use super::{Cubins, kernel_of};
use crate::capture::tape;
use crate::device::{Grid, Launch, LoadedKernel};
use oxyfuel_base::{DType, Result, ensure, err};
use oxyfuel_plan::{Gemm, GemmOperand, PtxModule};
use std::ffi::{c_int, c_void};
use std::sync::{Arc, OnceLock};

type Handle = *mut c_void;
type Status = c_int;

/// The vendor's numbers.
mod number {
    use std::ffi::c_int;
    pub const R_32F: c_int = 0;
    pub const R_64F: c_int = 1;
    pub const R_16F: c_int = 2;
    pub const R_16BF: c_int = 14;
    /// Sums in f32 of operands as they are: no TF32.
    pub const COMPUTE_32F: c_int = 68;
    pub const COMPUTE_64F: c_int = 70;
    pub const COMPUTE_32F_FAST_TF32: c_int = 77;
    pub const DESC_TRANSPOSE_A: c_int = 3;
    pub const DESC_TRANSPOSE_B: c_int = 4;
    pub const LAYOUT_BATCH_COUNT: c_int = 5;
    pub const LAYOUT_BATCH_STRIDE: c_int = 6;
    pub const PREFER_WORKSPACE: c_int = 1;
    pub const PREFER_ALIGN_A: c_int = 5;
    pub const PREFER_ALIGN_B: c_int = 6;
    pub const PREFER_ALIGN_C: c_int = 7;
    pub const PREFER_ALIGN_D: c_int = 8;
}

/// What the library says of a way to compute a product.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Heuristic {
    algorithm: [u64; 8],
    workspace: usize,
    state: Status,
    waves: f32,
    reserved: [c_int; 4],
}

macro_rules! table {
    ($($name:ident $symbol:literal ($($arg:ident: $ty:ty),*);)*) => {
        /// The functions that are used, by the types of the vendor's documentation.
        #[derive(Clone, Copy, Debug)]
        pub(super) struct Table {
            $($name: unsafe extern "C" fn($($arg: $ty),*) -> Status,)*
        }

        impl Table {
            /// # Safety
            /// What `resolve` finds are functions of these types, which stay where they are.
            unsafe fn find(resolve: impl Fn(&str) -> *const c_void) -> Option<Self> {
                Some(Self {
                    $($name: {
                        let found = resolve($symbol);
                        if found.is_null() {
                            return None;
                        }
                        // SAFETY: promised by the caller.
                        unsafe { std::mem::transmute::<*const c_void, unsafe extern "C" fn($($arg: $ty),*) -> Status>(found) }
                    },)*
                })
            }
        }
    };
}

table! {
    create "cublasLtCreate" (handle: *mut Handle);
    destroy "cublasLtDestroy" (handle: Handle);
    desc_create "cublasLtMatmulDescCreate" (desc: *mut Handle, compute: c_int, scale: c_int);
    desc_destroy "cublasLtMatmulDescDestroy" (desc: Handle);
    desc_set "cublasLtMatmulDescSetAttribute" (desc: Handle, attribute: c_int, value: *const c_void, bytes: usize);
    layout_create "cublasLtMatrixLayoutCreate" (layout: *mut Handle, dtype: c_int, rows: u64, cols: u64, ld: i64);
    layout_destroy "cublasLtMatrixLayoutDestroy" (layout: Handle);
    layout_set "cublasLtMatrixLayoutSetAttribute" (layout: Handle, attribute: c_int, value: *const c_void, bytes: usize);
    prefer_create "cublasLtMatmulPreferenceCreate" (preference: *mut Handle);
    prefer_destroy "cublasLtMatmulPreferenceDestroy" (preference: Handle);
    prefer_set "cublasLtMatmulPreferenceSetAttribute" (preference: Handle, attribute: c_int, value: *const c_void, bytes: usize);
    heuristic "cublasLtMatmulAlgoGetHeuristic" (handle: Handle, desc: Handle, a: Handle, b: Handle, c: Handle, d: Handle, preference: Handle, wanted: c_int, results: *mut Heuristic, found: *mut c_int);
    matmul "cublasLtMatmul" (handle: Handle, desc: Handle, alpha: *const c_void, a: u64, a_layout: Handle, b: u64, b_layout: Handle, beta: *const c_void, c: u64, c_layout: Handle, d: u64, d_layout: Handle, algorithm: *const [u64; 8], workspace: u64, workspace_bytes: usize, stream: CuStream);
}

/// The library of this process, loaded at the first call.
pub(super) fn library() -> Option<&'static Table> {
    static LIBRARY: OnceLock<Option<(Table, libloading::Library)>> = OnceLock::new();
    let found = LIBRARY.get_or_init(|| {
        opened(CUBLAS_LT).find_map(|(_, library)| {
            let resolve = |symbol: &str| {
                // SAFETY: the address is taken and nothing is called.
                let found = unsafe { library.get::<*const c_void>(symbol) };
                found.map_or(std::ptr::null(), |found| *found)
            };
            // SAFETY: the types are those of the vendor's documentation, and the library stays.
            let table = unsafe { Table::find(resolve) }?;
            Some((table, library))
        })
    });
    found.as_ref().map(|(table, _)| table)
}

fn check(status: Status, what: &str) -> Result<()> {
    ensure!(
        status == 0,
        DriverCall,
        "the library of products answered {what} with status {status}"
    );
    Ok(())
}

/// An operand as the library sees it: rows, columns and the distance of columns, and whether it is transposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    rows: i64,
    cols: i64,
    ld: i64,
    transposed: bool,
}

/// `[rows, cols]` of ours, whose bytes are `[cols, rows]` of theirs.
fn seen(operand: &GemmOperand, rows: i64, cols: i64) -> Option<Seen> {
    let [down, along] = operand.strides;
    let found = if along == 1 {
        Seen {
            rows: cols,
            cols: rows,
            ld: down,
            transposed: false,
        }
    } else if down == 1 {
        Seen {
            rows,
            cols,
            ld: along,
            transposed: true,
        }
    } else {
        return None;
    };
    (found.ld >= found.rows).then_some(found)
}

fn number_of(dtype: DType) -> Option<c_int> {
    match dtype {
        DType::F32 => Some(number::R_32F),
        DType::F64 => Some(number::R_64F),
        DType::F16 => Some(number::R_16F),
        DType::BF16 => Some(number::R_16BF),
        _ => None,
    }
}

/// A thing of the library's, destroyed with us.
#[derive(Debug)]
struct Owned {
    raw: Handle,
    destroy: unsafe extern "C" fn(Handle) -> Status,
}

impl Owned {
    fn new(
        destroy: unsafe extern "C" fn(Handle) -> Status,
        what: &str,
        create: impl FnOnce(*mut Handle) -> Status,
    ) -> Result<Self> {
        let mut raw = std::ptr::null_mut();
        check(create(&mut raw), what)?;
        Ok(Self { raw, destroy })
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: created once by the function that belongs to it, and destroyed once.
        let _at_exit = unsafe { (self.destroy)(self.raw) };
    }
}

/// A product that the library computes.
#[derive(Debug)]
struct Prepared {
    table: &'static Table,
    handle: Owned,
    desc: Owned,
    layouts: [Owned; 3],
    algorithm: [u64; 8],
    /// One and zero, in the type of the sums.
    scales: [[u8; 8]; 2],
}

// SAFETY: the library may be called by several threads at once; nothing of ours changes after it is made.
unsafe impl Send for Prepared {}
// SAFETY: as above.
unsafe impl Sync for Prepared {}

impl Prepared {
    /// Asks the library for a way to compute it; the device's context is current.
    fn new(table: &'static Table, gemm: &Gemm) -> Result<Self> {
        let unfit = || err!(NoLowering, "a product that is none of the library's");
        let sums = match gemm.acc {
            DType::F32 if gemm.tf32 => (number::COMPUTE_32F_FAST_TF32, number::R_32F),
            DType::F32 => (number::COMPUTE_32F, number::R_32F),
            DType::F64 => (number::COMPUTE_64F, number::R_64F),
            _ => return Err(unfit()),
        };
        let Gemm { m, n, k, .. } = *gemm;
        let sides = [
            (&gemm.b, seen(&gemm.b, k, n)),
            (&gemm.a, seen(&gemm.a, m, k)),
            (&gemm.c, seen(&gemm.c, m, n).filter(|c| !c.transposed)),
        ];
        let handle = Owned::new(table.destroy, "cublasLtCreate", |raw| {
            // SAFETY: the pointer is valid for one handle.
            unsafe { (table.create)(raw) }
        })?;
        let desc = Owned::new(table.desc_destroy, "cublasLtMatmulDescCreate", |raw| {
            // SAFETY: as above.
            unsafe { (table.desc_create)(raw, sums.0, sums.1) }
        })?;
        let layout = |(operand, seen): (&GemmOperand, Option<Seen>)| {
            let (seen, dtype) = seen.zip(number_of(operand.dtype)).ok_or_else(unfit)?;
            let made = Owned::new(table.layout_destroy, "cublasLtMatrixLayoutCreate", |raw| {
                // SAFETY: as above.
                unsafe {
                    (table.layout_create)(raw, dtype, seen.rows as u64, seen.cols as u64, seen.ld)
                }
            })?;
            if gemm.batch > 1 {
                let count = c_int::try_from(gemm.batch).map_err(|_| unfit())?;
                set(
                    table.layout_set,
                    made.raw,
                    number::LAYOUT_BATCH_COUNT,
                    &count,
                )?;
                let stride = &operand.batch_stride;
                set(
                    table.layout_set,
                    made.raw,
                    number::LAYOUT_BATCH_STRIDE,
                    stride,
                )?;
            }
            Ok((made, c_int::from(seen.transposed)))
        };
        let [(first, first_turned), (second, second_turned), (result, _)] =
            [layout(sides[0])?, layout(sides[1])?, layout(sides[2])?];
        set(
            table.desc_set,
            desc.raw,
            number::DESC_TRANSPOSE_A,
            &first_turned,
        )?;
        set(
            table.desc_set,
            desc.raw,
            number::DESC_TRANSPOSE_B,
            &second_turned,
        )?;
        let preference = Owned::new(
            table.prefer_destroy,
            "cublasLtMatmulPreferenceCreate",
            // SAFETY: as above.
            |raw| unsafe { (table.prefer_create)(raw) },
        )?;
        for (attribute, operand) in [
            (number::PREFER_ALIGN_A, &gemm.b),
            (number::PREFER_ALIGN_B, &gemm.a),
            (number::PREFER_ALIGN_C, &gemm.c),
            (number::PREFER_ALIGN_D, &gemm.c),
        ] {
            set(table.prefer_set, preference.raw, attribute, &operand.align)?;
        }
        set(
            table.prefer_set,
            preference.raw,
            number::PREFER_WORKSPACE,
            &0u64,
        )?;
        let mut best = Heuristic {
            algorithm: [0; 8],
            workspace: 0,
            state: 0,
            waves: 0.0,
            reserved: [0; 4],
        };
        let mut found = 0;
        // SAFETY: all handles are alive; there is room for one result and one count.
        let status = unsafe {
            (table.heuristic)(
                handle.raw,
                desc.raw,
                first.raw,
                second.raw,
                result.raw,
                result.raw,
                preference.raw,
                1,
                &mut best,
                &mut found,
            )
        };
        check(status, "cublasLtMatmulAlgoGetHeuristic")?;
        ensure!(
            found == 1 && best.state == 0 && best.workspace == 0,
            NoLowering,
            "the library of products has no way to compute this one"
        );
        let mut scales = [[0; 8]; 2];
        match gemm.acc {
            DType::F64 => scales[0] = 1f64.to_ne_bytes(),
            _ => scales[0][..4].copy_from_slice(&1f32.to_ne_bytes()),
        }
        Ok(Self {
            table,
            handle,
            desc,
            layouts: [first, second, result],
            algorithm: best.algorithm,
            scales,
        })
    }

    /// # Safety
    /// The addresses are memory of the device as the product says, and stay valid until it is done.
    unsafe fn launch(&self, [a, b, c]: [u64; 3], stream: CuStream) -> Result<()> {
        let [first, second, result] = &self.layouts;
        let [one, zero] = &self.scales;
        // SAFETY: all handles are alive and the scales are host memory that is read now; the rest is promised.
        let status = unsafe {
            (self.table.matmul)(
                self.handle.raw,
                self.desc.raw,
                one.as_ptr().cast(),
                b,
                first.raw,
                a,
                second.raw,
                zero.as_ptr().cast(),
                c,
                result.raw,
                c,
                result.raw,
                &self.algorithm,
                0,
                0,
                stream,
            )
        };
        check(status, "cublasLtMatmul")
    }
}

/// Sets an attribute of one of the library's things.
fn set<T>(
    function: unsafe extern "C" fn(Handle, c_int, *const c_void, usize) -> Status,
    thing: Handle,
    attribute: c_int,
    value: &T,
) -> Result<()> {
    let value = std::ptr::from_ref(value).cast();
    // SAFETY: the thing is alive, and the value is read before this returns.
    let status = unsafe { function(thing, attribute, value, size_of::<T>()) };
    check(status, "an attribute")
}

/// A kernel of the plan whose product the library computes.
#[derive(Debug)]
pub(super) struct GemmKernel {
    prepared: Prepared,
    gemm: Gemm,
    context: Arc<Context>,
    label: Arc<str>,
    /// The plan's own, made when it is first needed.
    ptx: PtxModule,
    cubins: Option<Cubins>,
    own: OnceLock<Result<CudaKernel>>,
}

impl GemmKernel {
    /// The product by the library; an error where that is not there or does not take it.
    pub fn new(
        context: &Arc<Context>,
        gemm: &Gemm,
        ptx: &PtxModule,
        cubins: Option<Cubins>,
        label: Arc<str>,
    ) -> Result<Self> {
        let table = library().ok_or_else(|| err!(MissingLibrary, "there is no cuBLASLt"))?;
        let entered = context.enter()?;
        let prepared = Prepared::new(table, gemm)?;
        drop(entered);
        Ok(Self {
            prepared,
            gemm: gemm.clone(),
            context: context.clone(),
            label,
            ptx: ptx.clone(),
            cubins,
            own: OnceLock::new(),
        })
    }

    fn own(&self) -> Result<&CudaKernel> {
        let made = self.own.get_or_init(|| {
            let kernel = kernel_of(&self.context, self.cubins.as_ref(), &self.ptx)?;
            Ok(kernel.called(self.label.clone()))
        });
        made.as_ref().map_err(Clone::clone)
    }
}

impl LoadedKernel for GemmKernel {
    fn follows(&self) -> bool {
        false
    }

    fn pieces(&self, _grids: &[Grid]) -> usize {
        1
    }

    unsafe fn launch(&self, launch: &Launch<'_>) -> Result<()> {
        let device = self.context.id;
        let stream = tape::stream(device, launch.stream);
        let raw = CuStream(stream.0 as *mut c_void);
        if tape::is_on(device) {
            // SAFETY: promised by the caller.
            return unsafe { self.own()?.launch(launch) };
        }
        let _entered = self.context.enter()?;
        let address = |operand: &GemmOperand| -> Result<u64> {
            let word = launch.words.get(operand.param as usize);
            let word = word.ok_or_else(|| err!(InvalidPlan, "a product over no parameter"))?;
            Ok(word + operand.offset as u64 * operand.dtype.size() as u64)
        };
        let Gemm { a, b, c, .. } = &self.gemm;
        let addresses = [address(a)?, address(b)?, address(c)?];
        // SAFETY: promised by the caller.
        unsafe { self.prepared.launch(addresses, raw) }
            .map_err(|error| error.context(format_args!("kernel {}", self.label)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operand(strides: [i64; 2]) -> GemmOperand {
        GemmOperand {
            param: 0,
            dtype: DType::F32,
            offset: 0,
            batch_stride: 0,
            strides,
            align: 16,
        }
    }

    #[test]
    fn operands_are_seen_by_columns_or_transposed() {
        let found = |strides| seen(&operand(strides), 3, 5);
        let [rows, turned] = [found([8, 1]).unwrap(), found([1, 4]).unwrap()];
        assert_eq!(
            (rows.rows, rows.cols, rows.ld, rows.transposed),
            (5, 3, 8, false)
        );
        assert_eq!(
            (turned.rows, turned.cols, turned.ld, turned.transposed),
            (3, 5, 4, true)
        );
        // Neither way is dense, rows overlap, or nothing moves along them.
        assert_eq!([[8, 2], [4, 1], [0, 1], [1, 2]].map(found), [None; 4]);
    }

    #[test]
    fn what_the_library_says_has_the_documented_layout() {
        assert_eq!(size_of::<Heuristic>(), 96);
        assert_eq!(std::mem::offset_of!(Heuristic, workspace), 64);
        assert_eq!(std::mem::offset_of!(Heuristic, state), 72);
    }

    /// Functions of a library that computes nothing and remembers how it was asked to sum.
    mod fake {
        use super::super::{Handle, Heuristic, Status};
        use std::cell::Cell;
        use std::ffi::{c_int, c_void};

        thread_local! {
            pub static COMPUTE: Cell<c_int> = const { Cell::new(0) };
        }

        pub extern "C" fn create(made: *mut Handle) -> Status {
            // SAFETY: whoever creates gives a place for the handle.
            unsafe { made.write(std::ptr::dangling_mut()) };
            0
        }
        pub extern "C" fn destroy(_: Handle) -> Status {
            0
        }
        pub extern "C" fn desc_create(made: *mut Handle, compute: c_int, _: c_int) -> Status {
            COMPUTE.set(compute);
            create(made)
        }
        pub extern "C" fn layout_create(
            made: *mut Handle,
            _: c_int,
            _: u64,
            _: u64,
            _: i64,
        ) -> Status {
            create(made)
        }
        pub extern "C" fn set(_: Handle, _: c_int, _: *const c_void, _: usize) -> Status {
            0
        }
        pub extern "C" fn heuristic(
            _: Handle,
            _: Handle,
            _: Handle,
            _: Handle,
            _: Handle,
            _: Handle,
            _: Handle,
            _: c_int,
            _: *mut Heuristic,
            found: *mut c_int,
        ) -> Status {
            // SAFETY: whoever asks gives a place for the count.
            unsafe { found.write(1) };
            0
        }
    }

    #[test]
    fn sums_are_asked_for_in_tf32_where_the_product_allows_it() {
        static TABLE: OnceLock<Table> = OnceLock::new();
        let find = |symbol: &str| match symbol {
            "cublasLtMatmulDescCreate" => fake::desc_create as *const c_void,
            "cublasLtMatrixLayoutCreate" => fake::layout_create as *const c_void,
            "cublasLtMatmulAlgoGetHeuristic" => fake::heuristic as *const c_void,
            symbol if symbol.ends_with("Create") => fake::create as *const c_void,
            symbol if symbol.ends_with("SetAttribute") => fake::set as *const c_void,
            // The product itself is never launched here.
            _ => fake::destroy as *const c_void,
        };
        // SAFETY: what is called has the type of its symbol, and stays.
        let table = TABLE.get_or_init(|| unsafe { Table::find(find) }.unwrap());
        let asked = |dtype: DType, acc: DType, tf32: bool| {
            let operand = || GemmOperand {
                dtype,
                ..operand([8, 1])
            };
            let gemm = Gemm {
                batch: 1,
                m: 8,
                n: 8,
                k: 8,
                a: operand(),
                b: operand(),
                c: operand(),
                acc,
                tf32,
            };
            Prepared::new(table, &gemm).unwrap();
            fake::COMPUTE.get()
        };
        assert_eq!(asked(DType::F32, DType::F32, false), 68);
        assert_eq!(asked(DType::F32, DType::F32, true), 77);
        assert_eq!(asked(DType::BF16, DType::F32, false), 68);
        assert_eq!(asked(DType::F64, DType::F64, true), 70);
    }

    #[test]
    fn a_library_without_a_function_is_none() {
        // SAFETY: nothing is called.
        assert!(unsafe { Table::find(|_| std::ptr::null()) }.is_none());
    }
}
