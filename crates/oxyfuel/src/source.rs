//! Tensors out of nothing, beyond those that [`tensor`](crate::tensor) has.

use crate::recipe::Build::Nodes;
use crate::recipe::{Recording, recipe};
use crate::tensor::Tensor;
use oxyfuel_base::{DType, Expr, Result, Scalar, ensure, err};
use oxyfuel_graph::{Device, Op, ValueId};
use oxyfuel_runtime::tensor::layout;

/// A dtype as one of the numbers of a recipe.
fn number_of(dtype: DType) -> Scalar {
    let place = DType::ALL.iter().position(|&d| d == dtype);
    Scalar::I(place.and_then(|at| i64::try_from(at).ok()).unwrap_or(0))
}

fn dtype_of(r: &Recording<'_>, i: usize) -> Result<DType> {
    let known = usize::try_from(r.int(i)?)
        .ok()
        .and_then(|at| DType::ALL.get(at));
    known
        .copied()
        .ok_or_else(|| err!(Internal, "{}: no dtype", r.name))
}

impl Tensor {
    /// `steps` numbers at equal distances from `start` to `end`, both included; integers are cut off towards zero.
    #[track_caller]
    pub fn linspace(
        start: impl Into<Scalar>,
        end: impl Into<Scalar>,
        steps: i64,
        dtype: DType,
    ) -> Tensor {
        let numbers = [start.into(), end.into(), steps.into(), number_of(dtype)];
        recipe(
            "linspace",
            &[],
            &numbers,
            Nodes(|r| {
                let [start, end] = ends(r)?;
                let (steps, dtype) = (r.int(2)?, dtype_of(r, 3)?);
                r.b.linspace(start, end, steps, dtype)
            }),
        )
    }

    /// `base` to the powers of [`linspace`](Self::linspace).
    #[track_caller]
    pub fn logspace(
        start: impl Into<Scalar>,
        end: impl Into<Scalar>,
        steps: i64,
        base: f64,
        dtype: DType,
    ) -> Tensor {
        let numbers = [
            start.into(),
            end.into(),
            steps.into(),
            number_of(dtype),
            base.into(),
        ];
        recipe(
            "logspace",
            &[],
            &numbers,
            Nodes(|r| {
                let [start, end] = ends(r)?;
                let (steps, dtype, base) = (r.int(2)?, dtype_of(r, 3)?, r.float(4)?);
                r.b.logspace(start, end, steps, base, dtype)
            }),
        )
    }

    /// 1 on the main diagonal of `rows` x `columns`, 0 elsewhere.
    #[track_caller]
    pub fn eye(rows: i64, columns: i64, dtype: DType) -> Tensor {
        let numbers = [rows.into(), columns.into(), number_of(dtype)];
        recipe(
            "eye",
            &[],
            &numbers,
            Nodes(|r| {
                let (rows, columns, dtype) = (r.int(0)?, r.int(1)?, dtype_of(r, 2)?);
                layout::byte_count(&[rows, columns], dtype.size())?;
                let row = counted(r, rows)?;
                let row = r.b.view(row, &[Expr::constant(rows), Expr::ONE])?;
                let column = counted(r, columns)?;
                let on = r.b.eq(row, column)?;
                r.b.cast(on, dtype)
            }),
        )
    }

    /// A tensor whose elements nobody has asked for: zeros, so that no program depends on what was in memory.
    #[track_caller]
    pub fn empty(shape: &[i64], dtype: DType) -> Tensor {
        Self::zeros(shape, dtype)
    }

    /// A tensor of this one's type, shape and device whose elements nobody has asked for: zeros.
    #[track_caller]
    pub fn empty_like(&self) -> Tensor {
        self.zeros_like()
    }

    /// Zeros of this tensor's device.
    #[track_caller]
    pub fn new_zeros(&self, shape: &[i64], dtype: DType) -> Tensor {
        self.new_full(shape, 0, dtype)
    }

    /// Ones of this tensor's device.
    #[track_caller]
    pub fn new_ones(&self, shape: &[i64], dtype: DType) -> Tensor {
        self.new_full(shape, 1, dtype)
    }
}

fn counted(r: &mut Recording<'_>, count: i64) -> Result<ValueId> {
    ensure!(
        count >= 0,
        InvalidArgument,
        "{}: an extent of {count}",
        r.name
    );
    let op = Op::Arange {
        start: Scalar::I(0),
        step: Scalar::I(1),
        shape: vec![Expr::constant(count)],
        dtype: DType::I64,
        device: Device::Cpu,
    };
    r.b.emit(op, &[])
}

/// The two ends, as wide as they were written.
fn ends(r: &mut Recording<'_>) -> Result<[ValueId; 2]> {
    let end = |r: &mut Recording<'_>, i: usize| {
        let number = r.number(i)?;
        let dtype = match number {
            Scalar::F(_) => DType::F64,
            Scalar::I(_) | Scalar::B(_) => DType::I64,
        };
        r.b.full(number, vec![], dtype, Device::Cpu)
    };
    Ok([end(r, 0)?, end(r, 1)?])
}
