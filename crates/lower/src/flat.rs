//! A matrix product with few rows, on the vector unit of a CPU, whose second operand runs along its columns: activations of a few tokens times a weight that is stored by its inputs.
//!
//! ```text
//!   an instance computes all rows of a stripe of columns
//!
//!   for every few elements of the depth:
//!     for each block of the stripe: its sums, from the first-level cache, and back
//! ```
//!
//! Nothing is copied. A stripe is a page wide or more, so that `b` is read in long runs: a block that went down the whole depth by itself would touch a page for every few vectors, and
//! nothing would be fetched ahead. Two weights of one `a` (a gated layer) are read one after the other, and their sums meet at the end.

use oxyfuel_base::{DType, Expr, Result, ensure, err};
use oxyfuel_kernel::Program;
use oxyfuel_kernel::builder::{KernelBuilder, Mem, Tile, Window};
use oxyfuel_kernel::ir::{MmaDim, Space};
use oxyfuel_plan::TargetDesc;

use crate::direct::Product;
use crate::map::vector;
use crate::nest::Nest;
use crate::packed::{finish, held, lay_out, origin};
use crate::rows::left;
use crate::size::Params;
use crate::tile::ceil_div;

/// From so many rows on, an element is used often enough to be copied.
const FEW: i64 = 8;
/// Below so many multiply-adds a plain reduction is as good.
const WORTH: i64 = 1 << 15;
/// Elements of the depth between two visits to the sums: as many runs of `b` are read side by side.
const DEEP: i64 = 8;
/// Bytes of a stripe's row: what instances are at least, so that runs are long, and at most.
const RUNS: [i64; 2] = [1 << 10, 1 << 14];

struct Work<'a> {
    nest: &'a Nest,
    params: &'a Params,
    product: &'a Product,
    /// The products that it is.
    each: &'a [Product],
    cols: i64,
    /// Blocks of a stripe.
    across: i64,
}

/// Builds the program, or says why this product is not for it.
pub fn flat(
    nest: &Nest,
    params_of: impl Fn(&KernelBuilder) -> Params,
    product: &Product,
    target: &TargetDesc,
) -> Result<Program> {
    suits(product, target)?;
    let Product { batch, m, n, .. } = *product;
    let size = product.acc.size() as i64;
    let lanes = i64::from(target.lanes(product.acc.size() as u32));
    // As many vectors of sums as the registers hold beside what feeds them; bounds would need a copy.
    let registers = i64::from(target.registers);
    let most = ((registers - 6) / m).min(registers / 8);
    let mut widths = (1..=most).rev().map(|vectors| vectors * lanes);
    let cols = widths.find(|cols| n % cols == 0);
    let cols = cols.ok_or_else(|| err!(NoLowering, "{n} columns are no whole vectors"))?;
    let blocks = n / cols;
    let l1 = i64::try_from(target.l1_bytes).unwrap_or(i64::MAX);
    let widest = (l1 / 2 / m).clamp(RUNS[0], RUNS[1]) / (cols * size);
    let shared_out = ceil_div(blocks * batch, 2 * i64::from(target.workers.max(1)));
    let least = (RUNS[0] / (cols * size)).max(1);
    let across = shared_out.clamp(least, widest.max(least)).min(blocks);
    let (geometry, spread) = vector(target.lanes(4));
    let k = KernelBuilder::mapped(&nest.name, geometry);
    lay_out(&k, &spread, &[m, cols]);
    let work = Work {
        nest,
        params: &params_of(&k),
        product,
        each: &product.each(),
        cols,
        across,
    };
    k.phase([ceil_div(blocks, across), batch].map(Expr::constant), |k| {
        work.stripe(k)
    });
    k.finish()
}

fn suits(product: &Product, target: &TargetDesc) -> Result<()> {
    let Product { batch, m, n, k, .. } = *product;
    let float = |dtype: DType| match product.acc {
        DType::F64 => dtype == DType::F64,
        DType::F32 => matches!(dtype, DType::F32 | DType::BF16 | DType::F16),
        _ => false,
    };
    let work = batch.saturating_mul(m).saturating_mul(n).saturating_mul(k);
    ensure!(
        !target.is_simt()
            && target.vector_bytes > 0
            && float(product.a.dtype)
            && float(product.b.dtype)
            && product.b.strides[1] == 1
            && (1..=FEW).contains(&m)
            && k >= DEEP
            && work >= WORTH,
        NoLowering,
        "a product of {m}x{n}x{k} that does not run along its columns with few rows"
    );
    Ok(())
}

impl Work<'_> {
    fn stripe(&self, k: &KernelBuilder) {
        let product = self.product;
        let (rows, cols) = (product.m, self.cols);
        let stripe = k.program_id(0);
        let batch = (product.batch > 1).then(|| k.program_id(1));
        let blocks = left(&stripe, self.across, product.n / cols)
            .unwrap_or_else(|| k.constant(DType::I64, self.across));
        let first = stripe * self.across;
        let length = self.across * rows * cols;
        let sums = |_: &Product| k.alloc(Space::Panel, product.acc, length, None);
        let sums: Vec<Mem> = self.each.iter().map(sums).collect();
        let homes = |block: &Tile| -> Vec<(&Product, Window)> {
            let home = |sums: &Mem| sums.at(&(block * (rows * cols))).shape([rows, cols]);
            self.each.iter().zip(sums.iter().map(home)).collect()
        };
        k.for_range(0, &blocks, 1, [], |k, block, []| {
            for (_, home) in homes(&block) {
                k.store(home, k.full(product.acc, [rows, cols], 0.0));
            }
            []
        });
        let steps = ceil_div(product.k, DEEP) - 1;
        // One weight after the other: more runs side by side, and nothing would be fetched ahead.
        for (product, sums) in self.each.iter().zip(&sums) {
            k.for_range(0, steps, 1, [], |k, step, []| {
                k.for_range(0, &blocks, 1, [], |k, block, []| {
                    let col = &first + &block;
                    let home = sums.at(&(block * (rows * cols))).shape([rows, cols]);
                    let sum = self.add(k, product, &home, &step, &col, DEEP, batch.as_ref());
                    k.store(home, &sum);
                    []
                });
                []
            });
        }
        let step = k.constant(DType::I64, steps);
        k.for_range(0, &blocks, 1, [], |k, block, []| {
            let col = &first + &block;
            let deep = product.k - steps * DEEP;
            let homes = homes(&block);
            let sums = homes.iter().map(|(product, home)| {
                self.add(k, product, home, &step, &col, deep, batch.as_ref())
            });
            let sums = held(k, [rows, cols], sums);
            let row = k.constant(DType::I64, 0);
            let sizes = [rows, cols];
            let at = [&row, &col];
            finish(
                k,
                self.params,
                self.nest,
                product,
                sizes,
                at,
                batch.as_ref(),
                sums,
            );
            []
        });
    }

    /// The sums of a block and `deep` products more.
    #[expect(
        clippy::too_many_arguments,
        reason = "the coordinates of one block, used twice"
    )]
    fn add(
        &self,
        k: &KernelBuilder,
        product: &Product,
        home: &Window,
        step: &Tile,
        col: &Tile,
        deep: i64,
        batch: Option<&Tile>,
    ) -> Tile {
        let row = k.constant(DType::I64, 0);
        let [down, along] = product.a.strides;
        let start = origin(&product.a, &row, product.m, down, batch) + step * (DEEP * along);
        let a = self.params.mems[product.a.buffer]
            .at(&start)
            .shape([product.m, deep])
            .strides([down, along])
            .operand([MmaDim::Side, MmaDim::K]);
        let [along, across] = product.b.strides;
        let start = origin(&product.b, col, self.cols, across, batch) + step * (DEEP * along);
        let b = self.params.mems[product.b.buffer]
            .at(&start)
            .shape([deep, self.cols])
            .strides([along, across])
            .operand([MmaDim::K, MmaDim::Side]);
        k.mma(a, b, &k.load(home.clone()), false)
    }
}
