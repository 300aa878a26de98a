//! Random structured programs through the allocator, verified by dataflow.

use proptest::prelude::*;

use crate::asm::Assembler;
use crate::asm::pool::Pool;
use crate::check::conflict;
use crate::level::Level;
use crate::mir::{A, Class, Cond, Func, Mem, Op, Reg, Remat, Width};
use crate::regalloc::{Loc, allocate};
use crate::rewrite::{rewrite, touches_stack};

#[derive(Clone, Debug)]
enum Node {
    Op(u8, u16, u16, u16),
    Loop(Vec<Node>),
    If(Vec<Node>),
}

fn nodes() -> impl Strategy<Value = Vec<Node>> {
    let leaf = (0..8u8, any::<u16>(), any::<u16>(), any::<u16>())
        .prop_map(|(k, a, b, c)| Node::Op(k, a, b, c));
    let tree = leaf.prop_recursive(3, 120, 30, |inner| {
        prop_oneof![
            6 => (0..8u8, any::<u16>(), any::<u16>(), any::<u16>()).prop_map(|(k, a, b, c)| Node::Op(k, a, b, c)),
            1 => prop::collection::vec(inner.clone(), 1..12).prop_map(Node::Loop),
            1 => prop::collection::vec(inner, 1..6).prop_map(Node::If),
        ]
    });
    prop::collection::vec(tree, 1..60)
}

struct Gen {
    f: Func,
    gprs: Vec<Reg>,
    vecs: Vec<Reg>,
    masks: Vec<Reg>,
    avx512: bool,
}

impl Gen {
    fn new(avx512: bool, pool: &mut Pool) -> Gen {
        let mut f = Func::default();
        let gprs = f.args.to_vec();
        let mut vecs = Vec::new();
        for n in 0..6u64 {
            let v = f.vec();
            let at = pool.scalar(n, 4);
            let whole = pool.repeated(n, 4, 32);
            f.inst(
                Op::VBroadcastSsM,
                if avx512 { Width::Z } else { Width::Y },
                &[v.into(), Mem::pool(at).into()],
            );
            f.remat.insert(
                v.number(),
                Remat {
                    pool: at,
                    element: 4,
                    whole: (!avx512).then_some(whole),
                },
            );
            vecs.push(v);
        }
        Gen {
            f,
            gprs,
            vecs,
            masks: Vec::new(),
            avx512,
        }
    }

    fn pick(from: &[Reg], n: u16) -> Reg {
        from[n as usize % from.len()]
    }

    fn run(&mut self, nodes: &[Node]) {
        let w = if self.avx512 { Width::Z } else { Width::Y };
        for node in nodes {
            let depth = (self.gprs.len(), self.vecs.len(), self.masks.len());
            match node {
                Node::Op(kind, a, b, c) => self.op(w, *kind, *a, *b, *c),
                Node::Loop(body) => {
                    let head = self.f.label();
                    let count = self.f.gpr();
                    self.f.inst(Op::MovU32, w, &[count.into(), A::I(3)]);
                    self.f.bind(head);
                    self.run(body);
                    self.f.inst(Op::SubI, w, &[count.into(), A::I(1)]);
                    self.f.jump(Cond::Ne, head);
                }
                Node::If(body) => {
                    let end = self.f.label();
                    let cond = Self::pick(&self.gprs, 0);
                    self.f.inst(Op::CmpI, w, &[cond.into(), A::I(7)]);
                    self.f.jump(Cond::E, end);
                    self.run(body);
                    self.f.bind(end);
                }
            }
            if matches!(node, Node::If(_)) {
                // What a branch defined may be undefined after it.
                self.gprs.truncate(depth.0);
                self.vecs.truncate(depth.1);
                self.masks.truncate(depth.2);
            }
        }
    }

    fn op(&mut self, w: Width, kind: u8, a: u16, b: u16, c: u16) {
        let (x, y, z) = (
            Self::pick(&self.vecs, a),
            Self::pick(&self.vecs, b),
            Self::pick(&self.vecs, c),
        );
        let (g, h) = (Self::pick(&self.gprs, a), Self::pick(&self.gprs, b));
        match kind {
            0 => {
                let d = self.f.vec();
                self.f
                    .inst(Op::FmaddPs, w, &[d.into(), x.into(), y.into(), z.into()]);
                self.vecs.push(d);
            }
            1 | 2 => {
                let d = self.f.vec();
                self.f.inst(Op::VAddPs, w, &[d.into(), x.into(), y.into()]);
                self.vecs.push(d);
            }
            3 => {
                let constants = 6;
                let d = self.vecs[constants.min(self.vecs.len() - 1)..]
                    [a as usize % (self.vecs.len() - constants.min(self.vecs.len() - 1))];
                if !self.f.remat.contains_key(&d.number()) {
                    self.f.inst(Op::VAddPs, w, &[d.into(), d.into(), y.into()]);
                }
            }
            4 => {
                let d = self.f.gpr();
                self.f.copy(w, d, g);
                self.f.inst(Op::Add, w, &[d.into(), h.into()]);
                self.gprs.push(d);
            }
            5 => self.f.inst(
                Op::VMovUpsS,
                w,
                &[Mem::indexed(g, h, 4, 64).into(), x.into()],
            ),
            6 if self.avx512 => {
                let k = self.f.mask();
                self.f
                    .inst(Op::VCmpPsK, w, &[k.into(), x.into(), y.into(), A::I(1)]);
                self.masks.push(k);
            }
            7 if !self.masks.is_empty() => {
                let d = self.f.vec();
                let k = Self::pick(&self.masks, c);
                let inst = crate::mir::Inst::new(Op::VBlendMPs, w, &[d.into(), x.into(), y.into()])
                    .masked(k, false);
                self.f.push(crate::mir::Item::Inst(inst));
                self.vecs.push(d);
            }
            _ => {
                let d = self.f.gpr();
                self.f.inst(Op::DivU, w, &[d.into(), g.into(), h.into()]);
                self.gprs.push(d);
            }
        }
    }
}

proptest! {
    #[test]
    fn allocations_hold_their_values(program in nodes(), avx512: bool) {
        let level = if avx512 { Level::AVX512 } else { Level::AVX2 };
        let mut pool = Pool::default();
        let mut g = Gen::new(avx512, &mut pool);
        g.run(&program);
        let items = g.f.items();
        let allocation = allocate(&g.f, &items, level);
        prop_assert_eq!(conflict(&g.f, &items, &allocation), None);
        let physical = rewrite(&g.f, &items, &allocation, level);
        let mut asm = Assembler::default();
        asm.function(&physical.parts(), physical.labels).expect("every physical instruction encodes");
        prop_assert!(!asm.finish(&pool).is_empty());
    }
}

/// Forty sums kept alive at once: the AVX2 file spills, the AVX-512 file too, and constants never take a slot.
#[test]
fn pressure_spills_and_constants_come_from_the_pool() {
    for (level, w) in [(Level::AVX2, Width::Y), (Level::AVX512, Width::Z)] {
        let mut pool = Pool::default();
        let mut g = Gen::new(level.avx512, &mut pool);
        let constants = g.vecs.clone();
        let values: Vec<Reg> = (0..40)
            .map(|i| {
                let d = g.f.vec();
                g.f.inst(
                    Op::VAddPs,
                    w,
                    &[
                        d.into(),
                        constants[i % 6].into(),
                        constants[(i + 1) % 6].into(),
                    ],
                );
                d
            })
            .collect();
        for v in values {
            let d = g.f.vec();
            g.f.inst(Op::VMulPs, w, &[d.into(), v.into(), constants[0].into()]);
            let out = g.f.args[1];
            g.f.inst(Op::VMovUpsS, w, &[Mem::at(out, 0).into(), d.into()]);
        }
        let items = g.f.items();
        let allocation = allocate(&g.f, &items, level);
        assert_eq!(conflict(&g.f, &items, &allocation), None);
        assert!(allocation.spilled > 0);
        for c in constants {
            assert!(!matches!(allocation.locs[c.number()], Loc::Stack(_)));
        }
        let physical = rewrite(&g.f, &items, &allocation, level);
        assert!(physical.items.iter().any(touches_stack));
    }
}

/// A value read in an inner loop and defined before the outer one survives the outer loop's back edge.
#[test]
fn values_live_into_a_loop_stay_to_its_end() {
    let mut f = Func::default();
    let [_, out, begin, end] = f.args;
    let kept = f.vec();
    f.inst(
        Op::VMovUps,
        Width::Z,
        &[kept.into(), Mem::at(out, 0).into()],
    );
    let head = f.label();
    f.bind(head);
    let used = f.vec();
    f.inst(
        Op::VAddPs,
        Width::Z,
        &[used.into(), kept.into(), kept.into()],
    );
    let later = f.vec();
    f.inst(
        Op::VAddPs,
        Width::Z,
        &[later.into(), used.into(), used.into()],
    );
    f.inst(
        Op::VMovUpsS,
        Width::Z,
        &[Mem::at(out, 64).into(), later.into()],
    );
    f.inst(Op::AddI, Width::X, &[begin.into(), A::I(1)]);
    f.inst(Op::Cmp, Width::X, &[begin.into(), end.into()]);
    f.jump(Cond::B, head);
    let items = f.items();
    let a = allocate(&f, &items, Level::AVX512);
    assert_eq!(conflict(&f, &items, &a), None);
    assert_ne!(a.locs[kept.number()], a.locs[later.number()]);
    assert_eq!(kept.class(), Class::Vec);
}
