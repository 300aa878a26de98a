//! Where the elements of a tensor lie, by torch's table of C functions (DLPack 1.3).
//!
//! Large outputs go the other way: torch adopts memory of ours, whose pages are kept from call to call; fresh pages cost more than the arithmetic done on them.
//!
//! Asking the table costs a tenth of a microsecond; Python's `data_ptr`, `size` and `stride` together cost one. A torch without the table is asked by those.

use crate::errors::raise;
use crate::place::Place;
use oxyfuel_base::{DType, err};
use oxyfuel_runtime::storage::Storage;
use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use std::ffi::{c_int, c_void};

/// DLPack's description of a borrowed tensor.
#[repr(C)]
struct DlTensor {
    data: *mut c_void,
    device: [c_int; 2],
    ndim: c_int,
    dtype: Element,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

/// DLPack's element type.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Element {
    code: u8,
    bits: u8,
    lanes: u16,
}

type Borrow = unsafe extern "C" fn(*mut ffi::PyObject, *mut DlTensor) -> c_int;
type Adopt = unsafe extern "C" fn(*mut Managed, *mut *mut ffi::PyObject) -> c_int;

/// DLPack's description of a tensor that changes hands.
#[repr(C)]
struct Managed {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
    flags: u64,
    tensor: DlTensor,
}

/// What a tensor of ours lives on until its last user lets it go.
struct Owner {
    managed: Managed,
    _storage: Storage,
    _shape: Box<[i64]>,
    _strides: Box<[i64]>,
}

/// DLPack's table of functions, as far as we read it.
#[repr(C)]
struct Table {
    major: u32,
    minor: u32,
    previous: *const Table,
    allocate: *const c_void,
    from_object: *const c_void,
    adopt: Option<Adopt>,
    borrow: Option<Borrow>,
}

/// The only version whose table is laid out like that.
const MAJOR: u32 = 1;
/// DLPack's number for memory of the processor.
const CPU: c_int = 1;

/// The functions that lend and take tensors, where this torch has them.
static FUNCTIONS: PyOnceLock<(Option<Borrow>, Option<Adopt>)> = PyOnceLock::new();

fn functions(py: Python<'_>) -> (Option<Borrow>, Option<Adopt>) {
    *FUNCTIONS.get_or_init(py, || find(py).unwrap_or_default())
}

/// A tensor of torch's on memory of ours, if this torch can take it. The memory goes back when torch lets go of its last use.
pub fn tensor<'py>(
    py: Python<'py>,
    storage: &Storage,
    dtype: DType,
    shape: &[i64],
    strides: &[i64],
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let (_, Some(adopt)) = functions(py) else {
        return Ok(None);
    };
    if dtype.is_narrow_float() {
        return Ok(None);
    }
    let (code, bits) = element(dtype);
    let (shape, strides): (Box<[i64]>, Box<[i64]>) = (shape.into(), strides.into());
    let owner = Box::into_raw(Box::new(Owner {
        managed: Managed {
            major: MAJOR,
            minor: 0,
            context: std::ptr::null_mut(),
            deleter: Some(delete),
            flags: 0,
            tensor: DlTensor {
                data: storage.address() as *mut c_void,
                device: [CPU, 0],
                ndim: c_int::try_from(shape.len()).unwrap_or(c_int::MAX),
                dtype: Element {
                    code,
                    bits,
                    lanes: 1,
                },
                shape: shape.as_ptr(),
                strides: strides.as_ptr(),
                byte_offset: 0,
            },
        },
        _storage: storage.clone(),
        _shape: shape,
        _strides: strides,
    }));
    // SAFETY: the box is ours alone until torch gets it.
    let managed = unsafe {
        (*owner).managed.context = owner.cast();
        &raw mut (*owner).managed
    };
    let mut object = std::ptr::null_mut();
    // SAFETY: the description is whole, its arrays and its memory belong to the owner, which lives until `delete`; torch calls that when it lets go, and by
    // DLPack's rules also when it fails.
    let failed = unsafe { adopt(managed, &raw mut object) } != 0;
    if failed {
        return Err(PyErr::fetch(py));
    }
    // SAFETY: on success torch has put a new reference there.
    unsafe { Bound::from_owned_ptr_or_err(py, object) }.map(Some)
}

/// Gives back what a tensor of ours lived on. Any thread may call it.
unsafe extern "C" fn delete(managed: *mut Managed) {
    // SAFETY: `context` is the box that `tensor` made, and torch calls this once.
    unsafe { drop(Box::from_raw((*managed).context.cast::<Owner>())) }
}

/// A tensor's place and form.
#[derive(Clone, Debug, Default)]
pub struct View {
    pub address: u64,
    pub shape: Vec<i64>,
    pub strides: Vec<i64>,
    /// DLPack's code and bits of the element type; none where nobody said.
    element: Option<(u8, u8)>,
}

impl View {
    /// Whether elements are of this type, as far as it is known.
    pub fn is_of(&self, dtype: DType) -> bool {
        self.element.is_none_or(|known| known == element(dtype))
    }

    /// Reads a tensor of that place into this view, without asking for memory once its vectors have grown.
    pub fn read(&mut self, tensor: &Bound<'_, PyAny>, place: Place) -> PyResult<()> {
        match functions(tensor.py()) {
            (Some(borrow), _) => self.borrow(tensor, place, borrow),
            (None, _) => self.ask(tensor, place),
        }
    }

    fn borrow(&mut self, tensor: &Bound<'_, PyAny>, place: Place, borrow: Borrow) -> PyResult<()> {
        let mut dl = DlTensor {
            data: std::ptr::null_mut(),
            device: [0; 2],
            ndim: 0,
            dtype: Element {
                code: 0,
                bits: 0,
                lanes: 0,
            },
            shape: std::ptr::null(),
            strides: std::ptr::null(),
            byte_offset: 0,
        };
        // SAFETY: the function came from the table that torch offers for its tensors; it fills the description of the object or sets an exception.
        let failed = unsafe { borrow(tensor.as_ptr(), &raw mut dl) } != 0;
        if failed {
            return Err(PyErr::take(tensor.py())
                .unwrap_or_else(|| PyTypeError::new_err("torch does not lend this tensor")));
        }
        if dl.device != place.dlpack() {
            return Err(elsewhere(tensor, place));
        }
        self.address = dl.data as u64 + dl.byte_offset;
        self.element = Some((dl.dtype.code, dl.dtype.bits));
        let rank = usize::try_from(dl.ndim).unwrap_or(0);
        self.shape.clear();
        self.strides.clear();
        if rank > 0 {
            // SAFETY: both arrays have `ndim` numbers and live as long as the tensor, which the caller holds.
            unsafe {
                self.shape
                    .extend_from_slice(std::slice::from_raw_parts(dl.shape, rank));
                self.strides
                    .extend_from_slice(std::slice::from_raw_parts(dl.strides, rank));
            }
        }
        Ok(())
    }

    fn ask(&mut self, tensor: &Bound<'_, PyAny>, place: Place) -> PyResult<()> {
        if tensor.getattr("device")?.str()?.to_str()? != place.to_string() {
            return Err(elsewhere(tensor, place));
        }
        self.address = tensor.call_method0("data_ptr")?.extract()?;
        self.shape = tensor.getattr("shape")?.extract()?;
        self.strides = tensor.call_method0("stride")?.extract()?;
        self.element = None;
        Ok(())
    }
}

/// What to say of a tensor that is not where the graph computes.
fn elsewhere(tensor: &Bound<'_, PyAny>, place: Place) -> PyErr {
    let device = tensor.getattr("device").and_then(|device| device.str());
    let found = device.map_or_else(|_| "elsewhere".to_owned(), |device| format!("on {device}"));
    raise(err!(
        DeviceMismatch,
        "a tensor is {found}, not on {place}, for which the graph was compiled"
    ))
}

/// The functions in the table of torch's tensors.
fn find(py: Python<'_>) -> PyResult<(Option<Borrow>, Option<Adopt>)> {
    let class = py.import("torch")?.getattr("Tensor")?;
    let Ok(capsule) = class.getattr("__dlpack_c_exchange_api__") else {
        return Ok((None, None));
    };
    // SAFETY: the name is checked by Python; a capsule of another name gives null.
    let table =
        unsafe { ffi::PyCapsule_GetPointer(capsule.as_ptr(), c"dlpack_exchange_api".as_ptr()) };
    if table.is_null() {
        return Err(PyErr::fetch(py));
    }
    // SAFETY: DLPack says that the table lives as long as the process and begins with its version, by which the rest is known.
    let table = unsafe { &*table.cast::<Table>() };
    if table.major == MAJOR {
        Ok((table.borrow, table.adopt))
    } else {
        Ok((None, None))
    }
}

/// DLPack's code and bits.
fn element(dtype: DType) -> (u8, u8) {
    match dtype {
        DType::I8 => (0, 8),
        DType::I16 => (0, 16),
        DType::I32 => (0, 32),
        DType::I64 => (0, 64),
        DType::U8 => (1, 8),
        DType::U16 => (1, 16),
        DType::U32 => (1, 32),
        DType::U64 => (1, 64),
        DType::F16 => (2, 16),
        DType::F32 => (2, 32),
        DType::F64 => (2, 64),
        DType::BF16 => (4, 16),
        DType::Bool => (6, 8),
        DType::F8E4M3 => (10, 8),
        DType::F8E5M2 => (12, 8),
        DType::E8M0 => (14, 8),
        DType::F4E2M1 => (17, 4),
    }
}
