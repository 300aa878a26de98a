//! Reading operands and ops.

use oxyfuel_base::{Code, DType, Result, Scalar};

use super::Parser;
use crate::ir::{
    Access, ArgOp, BarrierRef, BinaryOp, Block, CacheHint, CompareOp, MmaDim, MmaOperand, Op,
    ReduceOp, Role, Type, UnaryOp, Val,
};

impl<'t> Parser<'t> {
    // ---- operands ---------------------------------------------------------------------------------------------------------------

    fn window(&mut self, shape: Vec<i64>) -> Result<Access> {
        let mem = self.val()?;
        self.expect("[")?;
        let base = self.index()?;
        let strides = if self.eat(";") {
            self.list_until("]", Self::index)?
        } else {
            self.expect("]")?;
            Vec::new()
        };
        let valid = if self.eat_word("valid") {
            self.list("[", "]", |p| {
                if p.eat("_") {
                    Ok(None)
                } else {
                    p.index().map(Some)
                }
            })?
        } else {
            vec![None; strides.len()]
        };
        Ok(Access {
            mem,
            base,
            shape,
            strides,
            valid,
        })
    }

    fn shaped_window(&mut self) -> Result<Access> {
        let mut access = self.window(Vec::new())?;
        self.expect_word("shape")?;
        access.shape = self.shape()?;
        Ok(access)
    }

    /// `%mem[%index]`.
    fn positions(&mut self) -> Result<(Val, Val)> {
        let mem = self.val()?;
        self.expect("[")?;
        let index = self.val()?;
        self.expect("]")?;
        Ok((mem, index))
    }

    fn barrier(&mut self) -> Result<BarrierRef> {
        let mem = self.val()?;
        self.expect("[")?;
        let slot = self.index()?;
        self.expect("]")?;
        Ok(BarrierRef { mem, slot })
    }

    fn operand(&mut self) -> Result<MmaOperand> {
        let at = self.pos;
        let val = self.val()?;
        if !self.rest().starts_with('[') {
            return Ok(MmaOperand::Tile(val));
        }
        self.pos = at;
        let access = self.shaped_window()?;
        self.expect_word("dims")?;
        let dims = self.list("[", "]", |p| {
            let at = p.pos;
            match p.word()? {
                "k" => Ok(MmaDim::K),
                "side" => Ok(MmaDim::Side),
                other => Err(p.error(
                    Code::UnknownName,
                    at,
                    format!("a dim of an operand is k or side, not `{other}`"),
                )),
            }
        })?;
        Ok(MmaOperand::Mem { access, dims })
    }

    fn mask(&mut self) -> Result<Option<Val>> {
        if self.eat_word("mask") {
            self.val().map(Some)
        } else {
            Ok(None)
        }
    }

    fn hint(&mut self) -> CacheHint {
        if self.eat_word("streaming") {
            CacheHint::Streaming
        } else if self.eat_word("kept") {
            CacheHint::Kept
        } else if self.eat_word("ahead") {
            CacheHint::Ahead
        } else {
            CacheHint::Default
        }
    }

    fn fill(&mut self, dtype: DType) -> Result<Scalar> {
        if self.eat_word("fill") {
            self.scalar()
        } else {
            Ok(Scalar::I(0).cast(dtype))
        }
    }

    fn two(&mut self) -> Result<(Val, Val)> {
        let a = self.val()?;
        self.expect(",")?;
        Ok((a, self.val()?))
    }

    fn three(&mut self) -> Result<(Val, Val, Val)> {
        let (a, b) = self.two()?;
        self.expect(",")?;
        Ok((a, b, self.val()?))
    }

    // ---- ops --------------------------------------------------------------------------------------------------------------------

    pub(super) fn op(&mut self, result: Option<&Type>) -> Result<Op> {
        self.skip();
        let at = self.pos;
        let name = self.word()?;
        if let Some(op) = UnaryOp::from_name(name) {
            return Ok(Op::Unary {
                op,
                value: self.val()?,
            });
        }
        if let Some(op) = BinaryOp::from_name(name) {
            let (lhs, rhs) = self.two()?;
            return Ok(Op::Binary { op, lhs, rhs });
        }
        if let Some(op) = CompareOp::from_name(name) {
            let (lhs, rhs) = self.two()?;
            return Ok(Op::Compare { op, lhs, rhs });
        }
        if let Some(op) = ArgOp::from_name(name) {
            return Ok(Op::ArgReduce {
                op,
                value: self.val()?,
                axis: self.number()?,
            });
        }
        if let Some((family, member)) = name.split_once('.') {
            let op = ReduceOp::from_name(member).ok_or_else(|| {
                self.error(
                    Code::UnknownName,
                    at,
                    format!("there is no combination `{member}`"),
                )
            })?;
            return self.combination(family, op, at);
        }
        let result_tile = result.and_then(Type::as_tile);
        let result_dtype = result_tile.map_or(DType::F32, |tile| tile.dtype);
        Ok(match name {
            "program_id" => Op::ProgramId {
                axis: self.number()?,
            },
            "num_programs" => Op::NumPrograms {
                axis: self.number()?,
            },
            "const" => Op::Const {
                value: self.scalar()?,
            },
            "iota" => Op::Iota {
                dim: self.number()?,
            },
            "splat" => Op::Splat { value: self.val()? },
            "broadcast" => Op::Broadcast { value: self.val()? },
            "reshape" => Op::Reshape { value: self.val()? },
            "permute" => Op::Permute {
                value: self.val()?,
                perm: self.list("[", "]", Self::number)?,
            },
            "select" => {
                let (cond, on_true, on_false) = self.three()?;
                Op::Select {
                    cond,
                    on_true,
                    on_false,
                }
            }
            "fma" => {
                let (a, b, c) = self.three()?;
                Op::Fma { a, b, c }
            }
            "cast" => Op::Cast { value: self.val()? },
            "bitcast" => Op::Bitcast { value: self.val()? },
            "load" => {
                let access =
                    self.window(result_tile.map_or(Vec::new(), |tile| tile.shape.clone()))?;
                Op::Load {
                    access,
                    mask: self.mask()?,
                    fill: self.fill(result_dtype)?,
                    hint: self.hint(),
                }
            }
            "store" => {
                let mut access = self.window(Vec::new())?;
                self.expect(",")?;
                let value = self.val()?;
                access.shape = self
                    .program
                    .tile(value)
                    .map_or(Vec::new(), |tile| tile.shape.clone());
                Op::Store {
                    access,
                    value,
                    mask: self.mask()?,
                    hint: self.hint(),
                }
            }
            "gather" => {
                let (mem, index) = self.positions()?;
                Op::Gather {
                    mem,
                    index,
                    mask: self.mask()?,
                    fill: self.fill(result_dtype)?,
                }
            }
            "scatter" => {
                let (mem, index) = self.positions()?;
                self.expect(",")?;
                Op::Scatter {
                    mem,
                    index,
                    value: self.val()?,
                    mask: self.mask()?,
                }
            }
            "sort" => Op::Sort {
                value: self.val()?,
                axis: self.number()?,
                descending: self.eat_word("descending"),
            },
            "dot" => {
                let (a, b, acc) = self.three()?;
                Op::Dot { a, b, acc }
            }
            "for" => self.for_op()?,
            "if" => {
                let cond = self.val()?;
                let on_true = self.block()?;
                let on_false = if self.eat_word("else") {
                    self.block()?
                } else {
                    Block::default()
                };
                Op::If {
                    cond,
                    on_true,
                    on_false,
                }
            }
            "pick" => {
                let mems = self.list("(", ")", Self::val)?;
                self.expect("[")?;
                let index = self.val()?;
                self.expect("]")?;
                Op::Pick { mems, index }
            }
            "alloc" => Op::Alloc,
            "convert_layout" => Op::ConvertLayout { value: self.val()? },
            "mma" => {
                let a = self.operand()?;
                self.expect(",")?;
                let b = self.operand()?;
                self.expect(",")?;
                Op::Mma {
                    a,
                    b,
                    acc: self.val()?,
                    asynchronous: self.eat_word("async"),
                }
            }
            "mma_commit" => Op::MmaCommit,
            "mma_wait" => Op::MmaWait {
                pending: self.number()?,
                accs: self.list("(", ")", Self::val)?,
            },
            "tensor_load" => {
                let (map, coords) = (self.val()?, self.list("[", "]", Self::index)?);
                self.expect_word("to")?;
                let BarrierRef {
                    mem: dst,
                    slot: base,
                } = self.barrier()?;
                self.expect_word("on")?;
                Op::TensorLoad {
                    map,
                    coords,
                    dst,
                    base,
                    barrier: self.barrier()?,
                }
            }
            "tensor_store" => {
                let (map, coords) = (self.val()?, self.list("[", "]", Self::index)?);
                self.expect_word("from")?;
                let BarrierRef {
                    mem: src,
                    slot: base,
                } = self.barrier()?;
                Op::TensorStore {
                    map,
                    coords,
                    src,
                    base,
                }
            }
            "copy_async" => {
                let src = self.shaped_window()?;
                self.expect_word("to")?;
                Op::CopyAsync {
                    src,
                    dst: self.shaped_window()?,
                }
            }
            "copy_commit" => Op::CopyCommit,
            "copy_wait" => Op::CopyWait {
                pending: self.number()?,
            },
            "barrier_init" => {
                let barrier = self.barrier()?;
                self.expect_word("count")?;
                Op::BarrierInit {
                    barrier,
                    count: self.number()?,
                }
            }
            "barrier_arrive" => {
                let barrier = self.barrier()?;
                let bytes = if self.eat_word("bytes") {
                    Some(self.number()?)
                } else {
                    None
                };
                Op::BarrierArrive {
                    barrier,
                    bytes,
                    per_warp: self.eat_word("per_warp"),
                }
            }
            "barrier_wait" => {
                let barrier = self.barrier()?;
                self.expect_word("parity")?;
                Op::BarrierWait {
                    barrier,
                    parity: self.val()?,
                }
            }
            "sync" => Op::Sync,
            "fence_async" => Op::FenceAsync,
            "roles" => self.roles()?,
            other => {
                return Err(self.error(Code::UnknownName, at, format!("there is no op `{other}`")));
            }
        })
    }

    fn combination(&mut self, family: &str, op: ReduceOp, at: usize) -> Result<Op> {
        match family {
            "reduce" => Ok(Op::Reduce {
                op,
                value: self.val()?,
                axes: self.list("[", "]", Self::number)?,
            }),
            "scan" => Ok(Op::Scan {
                op,
                value: self.val()?,
                axis: self.number()?,
                reverse: self.eat_word("reverse"),
            }),
            "atomic" => {
                let (mem, index) = self.positions()?;
                self.expect(",")?;
                Ok(Op::Atomic {
                    op,
                    mem,
                    index,
                    value: self.val()?,
                    mask: self.mask()?,
                })
            }
            other => Err(self.error(Code::UnknownName, at, format!("there is no op `{other}`"))),
        }
    }

    fn for_op(&mut self) -> Result<Op> {
        let (iv_name, iv_at) = self.value_name()?;
        self.expect("=")?;
        let lo = self.index()?;
        self.expect_word("to")?;
        let hi = self.index()?;
        self.expect_word("step")?;
        let step = self.number()?;
        let unroll = if self.eat_word("unroll") {
            self.number()?
        } else {
            1
        };
        let iv = self.define(iv_name, iv_at, Type::scalar(DType::I64), None)?;
        let (mut inits, mut carried) = (Vec::new(), Vec::new());
        if self.eat("(") {
            let pairs = self.list_until(")", |p| {
                let (name, at) = p.value_name()?;
                p.expect(":")?;
                let (ty, layout) = p.ty()?;
                p.expect("=")?;
                let init = p.val()?;
                Ok((p.define(name, at, ty, layout)?, init))
            })?;
            (carried, inits) = pairs.into_iter().unzip();
        }
        Ok(Op::For {
            iv,
            lo,
            hi,
            step,
            inits,
            carried,
            body: self.block()?,
            unroll,
        })
    }

    fn roles(&mut self) -> Result<Op> {
        self.expect("{")?;
        let mut roles = Vec::new();
        while !self.eat("}") {
            self.expect_word("role")?;
            let name = self.word()?.to_string();
            self.expect_word("warps")?;
            let first_warp = self.number()?;
            self.expect("+")?;
            let warps = self.number()?;
            self.expect_word("registers")?;
            let registers = self.number()?;
            roles.push(Role {
                name,
                first_warp,
                warps,
                registers,
                body: self.block()?,
            });
        }
        Ok(Op::Roles { roles })
    }
}
