//! Expansions as tile IR: an [`Arith`] whose values are tiles and whose operations append to a program.

use oxyfuel_kernel::builder::{KernelBuilder, Tile};
use oxyfuel_kernel::{BinaryOp, CompareOp, DType, Scalar, UnaryOp, Val};

use super::arith::Arith;

/// Appends to `builder`. All values are tiles of the shape of the argument; literals are scalars that the builder spreads over it.
pub(crate) struct Emit<'k> {
    builder: &'k KernelBuilder,
    shape: Vec<i64>,
    /// Whether the machine has functions of its own that are within 2 ulp.
    own_functions: bool,
}

impl<'k> Emit<'k> {
    /// For an argument of this shape.
    pub(crate) fn new(builder: &'k KernelBuilder, shape: Vec<i64>) -> Self {
        Self {
            builder,
            shape,
            own_functions: false,
        }
    }

    /// For a machine with functions of its own.
    pub(crate) fn with_own_functions(mut self, own_functions: bool) -> Self {
        self.own_functions = own_functions;
        self
    }

    fn tile(&self, value: Val) -> Tile {
        self.builder.tile(value)
    }

    fn literal(&self, dtype: DType, value: Scalar) -> Val {
        self.builder.full(dtype, &self.shape, value).val()
    }

    fn unary(&self, op: UnaryOp, a: Val) -> Val {
        self.tile(a).unary(op).val()
    }

    fn binary(&self, op: BinaryOp, a: Val, b: Val) -> Val {
        self.tile(a).binary(op, self.tile(b)).val()
    }

    fn compare(&self, op: CompareOp, a: Val, b: Val) -> Val {
        self.tile(a).compare(op, self.tile(b)).val()
    }

    fn ternary(&self, cond: Val, yes: Val, no: Val) -> Val {
        self.tile(cond).select(self.tile(yes), self.tile(no)).val()
    }

    fn fused(&self, a: Val, b: Val, c: Val) -> Val {
        self.tile(a).fma(self.tile(b), self.tile(c)).val()
    }
}

/// Implements methods that are one op of the IR.
macro_rules! ops {
    ($($method:ident $form:ident $op:path;)*) => {$(ops!(@ $form $method $op);)*};
    (@ unary $method:ident $op:path) => {
        fn $method(&self, a: Val) -> Val {
            self.unary($op, a)
        }
    };
    (@ binary $method:ident $op:path) => {
        fn $method(&self, a: Val, b: Val) -> Val {
            self.binary($op, a, b)
        }
    };
    (@ compare $method:ident $op:path) => {
        fn $method(&self, a: Val, b: Val) -> Val {
            self.compare($op, a, b)
        }
    };
    (@ cast $method:ident $dtype:path) => {
        fn $method(&self, a: Val) -> Val {
            self.tile(a).cast($dtype).val()
        }
    };
    (@ bitcast $method:ident $dtype:path) => {
        fn $method(&self, a: Val) -> Val {
            self.tile(a).bitcast($dtype).val()
        }
    };
    (@ long_shift $method:ident $op:path) => {
        fn $method(&self, a: Val, by: i32) -> Val {
            self.binary($op, a, self.long(by as u64))
        }
    };
    (@ shift $method:ident $op:path) => {
        fn $method(&self, a: Val, by: i32) -> Val {
            self.binary($op, a, self.int(by))
        }
    };
}

impl Arith for Emit<'_> {
    type F = Val;
    type I = Val;
    type D = Val;
    type L = Val;
    type B = Val;

    fn float(&self, value: f32) -> Val {
        self.literal(DType::F32, Scalar::from(value))
    }

    fn int(&self, value: i32) -> Val {
        self.literal(DType::I32, Scalar::from(value))
    }

    fn double(&self, value: f64) -> Val {
        self.literal(DType::F64, Scalar::from(value))
    }

    fn long(&self, value: u64) -> Val {
        self.literal(DType::U64, Scalar::I(value as i64))
    }

    fn lnonzero(&self, a: Val) -> Val {
        self.compare(CompareOp::Ne, a, self.long(0))
    }

    fn fma(&self, a: Val, b: Val, c: Val) -> Val {
        self.fused(a, b, c)
    }

    fn dfma(&self, a: Val, b: Val, c: Val) -> Val {
        self.fused(a, b, c)
    }

    fn select(&self, cond: Val, yes: Val, no: Val) -> Val {
        self.ternary(cond, yes, no)
    }

    fn dselect(&self, cond: Val, yes: Val, no: Val) -> Val {
        self.ternary(cond, yes, no)
    }

    /// A quotient takes ten instructions and a branch on machines that estimate reciprocals in one.
    fn inverse(&self, a: Val) -> Val {
        let one = self.float(1.0);
        if !self.own_functions {
            return self.div(one, a);
        }
        let estimate = self.near_recip(a);
        let rest = self.fma(self.neg(a), estimate, one);
        self.fma(estimate, rest, estimate)
    }

    fn nonzero(&self, a: Val) -> Val {
        self.compare(CompareOp::Ne, a, self.int(0))
    }

    ops! {
        add binary BinaryOp::Add;
        sub binary BinaryOp::Sub;
        mul binary BinaryOp::Mul;
        div binary BinaryOp::Div;
        min binary BinaryOp::Min;
        max binary BinaryOp::Max;
        neg unary UnaryOp::Neg;
        abs unary UnaryOp::Abs;
        sqrt unary UnaryOp::Sqrt;
        exp2 unary UnaryOp::Exp2;
        near_exp2 unary UnaryOp::NearExp2;
        near_recip unary UnaryOp::NearRecip;
        near_rsqrt unary UnaryOp::Rsqrt;
        lt compare CompareOp::Lt;
        eq compare CompareOp::Eq;
        bits bitcast DType::I32;
        of_bits bitcast DType::F32;
        to_float cast DType::F32;
        iadd binary BinaryOp::Add;
        isub binary BinaryOp::Sub;
        and binary BinaryOp::And;
        or binary BinaryOp::Or;
        xor binary BinaryOp::Xor;
        shl shift BinaryOp::Shl;
        shr shift BinaryOp::Shr;
        widen cast DType::F64;
        narrow cast DType::F32;
        dadd binary BinaryOp::Add;
        dsub binary BinaryOp::Sub;
        dmul binary BinaryOp::Mul;
        ddiv binary BinaryOp::Div;
        dmin binary BinaryOp::Min;
        dmax binary BinaryOp::Max;
        deq compare CompareOp::Eq;
        dneg unary UnaryOp::Neg;
        dround unary UnaryOp::Round;
        dto_int cast DType::I32;
        dabs unary UnaryOp::Abs;
        dsqrt unary UnaryOp::Sqrt;
        dtrunc unary UnaryOp::Trunc;
        dlt compare CompareOp::Lt;
        dbits bitcast DType::U64;
        of_dbits bitcast DType::F64;
        ladd binary BinaryOp::Add;
        lsub binary BinaryOp::Sub;
        land binary BinaryOp::And;
        lor binary BinaryOp::Or;
        lshl long_shift BinaryOp::Shl;
        lshr long_shift BinaryOp::Shr;
    }
}
