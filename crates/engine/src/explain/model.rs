//! What work should take by the machine's figures, and what the whole should gain over one operator at a time.
//!
//! A model, not a measurement: [`ASSUMPTIONS`] is all that it leaves out.

use oxyfuel_plan::{Plan, Step};
use serde::Serialize;

use super::{Basis, CodeKind, Explanation};
use crate::cost::Operator;
use crate::figures::{Figures, Level};
use crate::record::Record;

/// What the expected times take for granted.
pub const ASSUMPTIONS: &[&str] = &[
    "a kernel's data comes from the smallest cache that holds all that it touches",
    "reading and computing overlap, so the longer of the two counts, at the best speed that a copy or a product reached here",
    "one operation is half a multiply-add, unless it belongs to a product",
    "the host's products, convolutions and attention run at the machine's best; its other operators only move their bytes",
    "eager runs every operator by itself, each reading its operands and writing its results; memory is there already",
];

/// What has to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    pub bytes: u64,
    pub flops: u64,
    /// Of these, those of products.
    pub products: u64,
    /// Of elements that a matrix unit takes.
    pub narrow: bool,
}

/// What a time is spent on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Bound {
    /// Getting the work started.
    Launch,
    Memory,
    Arithmetic,
    /// Operators of the host.
    Host,
}

impl Bound {
    /// In words, after "by".
    pub fn words(self) -> &'static str {
        match self {
            Bound::Launch => "launches and calls",
            Bound::Memory => "memory",
            Bound::Arithmetic => "arithmetic",
            Bound::Host => "the host's own operators",
        }
    }
}

/// What one piece of work should take.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Expected {
    pub seconds: f64,
    /// Of this, what moving the bytes or computing takes at the machine's best, whichever is longer.
    pub roof_seconds: f64,
    /// Which of the two it is: memory or arithmetic.
    pub roof: Bound,
    /// What takes longest.
    pub bound: Bound,
    /// Where its data is expected.
    pub level: String,
}

impl Expected {
    /// Its share of the roofline, should it take as long as expected: what is missing from 1 is the start.
    pub fn roofline_share(&self) -> f64 {
        self.roof_seconds / self.seconds.max(1e-12)
    }

    /// What a share of the roofline is a share of.
    pub fn roof_words(&self) -> String {
        match (self.roof, self.level.as_str()) {
            (Bound::Arithmetic, _) => "the peak of arithmetic".to_owned(),
            (Bound::Memory | Bound::Launch | Bound::Host, "memory" | "") => {
                "memory bandwidth".to_owned()
            }
            (Bound::Memory | Bound::Launch | Bound::Host, level) => {
                format!("the {level}'s bandwidth")
            }
        }
    }
}

/// Parts of a time, which sum to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Shares {
    pub launch: f64,
    pub memory: f64,
    pub arithmetic: f64,
    pub host: f64,
}

/// What the whole should take and gain.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// Of one call.
    pub compiled_seconds: f64,
    pub compiled_bytes: u64,
    pub shares: Shares,
    /// The largest share.
    pub bound: Bound,
    /// What the work itself waits for, that of the host's operators included: memory or arithmetic, and its part of their time.
    pub roof: Bound,
    pub roof_share: f64,
    /// Of one call, one operator at a time.
    pub eager_seconds: f64,
    pub eager_bytes: u64,
    /// Operators that compute, and those that only name elements anew.
    pub eager_operators: usize,
    pub eager_views: usize,
    /// How many times faster.
    pub gain: f64,
    pub compile_seconds: Option<f64>,
    /// Calls after which compiling has paid; `None` where the gain is too little to tell, or the compile was not timed.
    pub break_even: Option<u64>,
    /// What would make it faster.
    pub advice: Vec<String>,
    pub assumptions: Vec<String>,
}

impl Figures {
    /// Where data of so many bytes is expected.
    pub fn level(&self, bytes: u64) -> Option<&Level> {
        self.levels
            .iter()
            .find(|level| level.bytes.is_none_or(|size| bytes <= size))
    }

    /// What work should take behind a start of so many seconds.
    pub fn expect(&self, work: &Work, start: f64) -> Expected {
        let level = self.level(work.bytes);
        let memory = level.map_or(0.0, |level| {
            work.bytes as f64 / level.bytes_per_second.max(1.0)
        });
        let products = match self.matrix_flops_per_second {
            Some(rate) if work.narrow => rate,
            Some(_) | None => self.flops_per_second,
        };
        let single = work.flops.saturating_sub(work.products);
        let arithmetic = work.products as f64 / products.max(1.0)
            + single as f64 / (self.flops_per_second / 2.0).max(1.0);
        let roof_seconds = memory.max(arithmetic);
        let roof = match memory >= arithmetic {
            true => Bound::Memory,
            false => Bound::Arithmetic,
        };
        Expected {
            seconds: start.max(0.0) + roof_seconds,
            roof_seconds,
            roof,
            bound: if start > roof_seconds {
                Bound::Launch
            } else {
                roof
            },
            level: level.map_or_else(String::new, |level| level.name.clone()),
        }
    }

    /// What an operator of an uncompiled program should take; `None` where its sizes are not known.
    fn expect_operator(&self, operator: &Operator, basis: &Basis<'_>) -> Option<(f64, u64)> {
        if operator.view {
            return Some((self.host.view_seconds, 0));
        }
        let bytes = basis.number(&operator.bytes_read)? + basis.number(&operator.bytes_written)?;
        let flops = match &operator.flops {
            Some(flops) => basis.number(flops)?,
            None => 0,
        };
        let products = match &operator.products {
            Some(products) => basis.number(products)?,
            None => 0,
        };
        let work = Work {
            bytes,
            flops,
            products,
            narrow: operator.narrow,
        };
        Some((
            self.expect(&work, self.host.dispatch_seconds).seconds,
            bytes,
        ))
    }
}

/// The verdict; `None` where the machine, the source program or a size is not known, or where the interpreter runs a kernel.
pub fn verdict(
    plan: &Plan,
    explanation: &Explanation,
    record: &Record,
    basis: &Basis<'_>,
) -> Option<Verdict> {
    let (figures, operators) = (basis.figures?, basis.operators?);
    let mut parts = Shares {
        launch: figures.host.call_seconds,
        ..Shares::default()
    };
    let mut bytes = 0;
    let mut roofs = Roofs::default();
    for kernel in &explanation.kernels {
        let expected = kernel.expected.as_ref()?;
        let times = kernel.launches as f64;
        let work = (expected.seconds - figures.launch_seconds).max(0.0);
        bytes += kernel.bytes? * kernel.launches as u64;
        parts.launch += times * figures.launch_seconds;
        roofs.add(expected, times);
        match expected.bound {
            Bound::Arithmetic => parts.arithmetic += times * work,
            Bound::Launch | Bound::Memory | Bound::Host => parts.memory += times * work,
        }
    }
    for call in &explanation.externals {
        bytes += call.bytes?;
        let expected = call.expected.as_ref()?;
        parts.host += expected.seconds;
        roofs.add(expected, 1.0);
    }
    for step in &plan.steps {
        if let Step::Copy { bytes: size, .. } = step {
            let size = 2 * basis.number(size)?;
            let work = Work {
                bytes: size,
                flops: 0,
                products: 0,
                narrow: false,
            };
            bytes += size;
            parts.memory += figures.expect(&work, 0.0).seconds;
            parts.launch += figures.launch_seconds;
        }
    }
    let compiled_seconds = parts.launch + parts.memory + parts.arithmetic + parts.host;
    let (mut eager_seconds, mut eager_bytes) = (0.0, 0);
    for operator in operators {
        let (seconds, bytes) = figures.expect_operator(operator, basis)?;
        eager_seconds += seconds;
        eager_bytes += bytes;
    }
    let views = operators.iter().filter(|operator| operator.view).count();
    let compile_seconds = basis
        .compile_time
        .or_else(|| (!record.steps.is_empty()).then(|| record.total()))
        .map(|time| time.as_secs_f64());
    let mut verdict = Verdict {
        compiled_seconds,
        compiled_bytes: bytes,
        shares: parts.of(compiled_seconds),
        bound: parts.largest(),
        roof: roofs.larger(),
        roof_share: roofs.share(),
        eager_seconds,
        eager_bytes,
        eager_operators: operators.len() - views,
        eager_views: views,
        gain: eager_seconds / compiled_seconds.max(1e-12),
        compile_seconds,
        break_even: break_even(compile_seconds, eager_seconds, compiled_seconds),
        advice: vec![],
        assumptions: ASSUMPTIONS.iter().map(|&line| line.to_owned()).collect(),
    };
    verdict.advice = advice(&verdict, explanation);
    Some(verdict)
}

impl Verdict {
    /// The verdict on a program of several parts, each with how often a call runs it. `None` of nothing.
    pub fn together(parts: &[(Verdict, f64)]) -> Option<Self> {
        let sum = |of: &dyn Fn(&Verdict) -> f64| -> f64 {
            parts.iter().map(|(part, runs)| runs * of(part)).sum()
        };
        let seconds = sum(&|part| part.compiled_seconds);
        let share = |of: &dyn Fn(&Shares) -> f64| sum(&|p| p.compiled_seconds * of(&p.shares));
        let spent = Shares {
            launch: share(&|shares| shares.launch),
            memory: share(&|shares| shares.memory),
            arithmetic: share(&|shares| shares.arithmetic),
            host: share(&|shares| shares.host),
        };
        let compiles = parts.iter().map(|(part, _)| part.compile_seconds);
        let eager_seconds = sum(&|part| part.eager_seconds);
        let compile_seconds = compiles.sum::<Option<f64>>();
        // The part that takes longest says what would help.
        let longest = parts.iter().max_by(|(a, times), (b, others)| {
            (a.compiled_seconds * times).total_cmp(&(b.compiled_seconds * others))
        })?;
        Some(Self {
            compiled_seconds: seconds,
            compiled_bytes: sum(&|part| part.compiled_bytes as f64) as u64,
            shares: spent.of(seconds),
            bound: spent.largest(),
            roof: longest.0.roof,
            roof_share: longest.0.roof_share,
            eager_seconds,
            eager_bytes: sum(&|part| part.eager_bytes as f64) as u64,
            eager_operators: sum(&|part| part.eager_operators as f64).round() as usize,
            eager_views: sum(&|part| part.eager_views as f64).round() as usize,
            gain: eager_seconds / seconds.max(1e-12),
            compile_seconds,
            break_even: break_even(compile_seconds, eager_seconds, seconds),
            advice: longest.0.advice.clone(),
            assumptions: longest.0.assumptions.clone(),
        })
    }
}

/// Seconds of work that waits for memory, and of work that waits for arithmetic.
#[derive(Clone, Copy, Debug, Default)]
struct Roofs {
    memory: f64,
    arithmetic: f64,
}

impl Roofs {
    fn add(&mut self, expected: &Expected, times: f64) {
        match expected.roof {
            Bound::Arithmetic => self.arithmetic += times * expected.roof_seconds,
            Bound::Memory | Bound::Launch | Bound::Host => {
                self.memory += times * expected.roof_seconds;
            }
        }
    }

    fn larger(self) -> Bound {
        match self.memory >= self.arithmetic {
            true => Bound::Memory,
            false => Bound::Arithmetic,
        }
    }

    fn share(self) -> f64 {
        self.memory.max(self.arithmetic) / (self.memory + self.arithmetic).max(1e-12)
    }
}

/// Calls after which compiling has paid.
fn break_even(compile: Option<f64>, eager: f64, compiled: f64) -> Option<u64> {
    compile
        .filter(|_| eager >= LITTLE * compiled)
        .map(|seconds| (seconds / (eager - compiled)).ceil() as u64)
}

impl Shares {
    fn of(self, whole: f64) -> Self {
        let whole = whole.max(1e-12);
        Self {
            launch: self.launch / whole,
            memory: self.memory / whole,
            arithmetic: self.arithmetic / whole,
            host: self.host / whole,
        }
    }

    pub fn named(&self) -> [(Bound, f64); 4] {
        [
            (Bound::Host, self.host),
            (Bound::Memory, self.memory),
            (Bound::Arithmetic, self.arithmetic),
            (Bound::Launch, self.launch),
        ]
    }

    fn largest(&self) -> Bound {
        let by_share = |a: &(Bound, f64), b: &(Bound, f64)| a.1.total_cmp(&b.1);
        self.named()
            .into_iter()
            .max_by(by_share)
            .map_or(Bound::Launch, |(bound, _)| bound)
    }
}

/// A gain below this is within what the model leaves out.
const LITTLE: f64 = 1.1;

/// What would help, a rule each.
fn advice(verdict: &Verdict, explanation: &Explanation) -> Vec<String> {
    let mut advice = vec![];
    let external = &explanation.externals;
    match verdict.bound {
        Bound::Host => {
            let seconds = |name: &str| -> f64 {
                let same = external.iter().filter(|call| call.name == name);
                same.filter_map(|call| call.expected.as_ref()).map(|e| e.seconds).sum()
            };
            let longest = external.iter().max_by(|a, b| seconds(&a.name).total_cmp(&seconds(&b.name)));
            if let Some(call) = longest {
                advice.push(format!(
                    "most of the time is the host's own `{}`: fusion cannot shorten it; bf16 on a machine with a matrix unit, or fewer operations, can",
                    call.name
                ));
            }
        }
        Bound::Memory => advice.push(
            "memory bounds it: bf16 or f16 tensors move half the bytes; results that are not used need not be returned".to_owned(),
        ),
        Bound::Arithmetic => advice.push(
            "arithmetic bounds it: more threads, or cheaper functions (gelu with approximate=\"tanh\"), help; moving less does not".to_owned(),
        ),
        Bound::Launch => advice.push(
            "the work is small: larger batches, or several steps in one compiled function, spread the cost of a call".to_owned(),
        ),
    }
    let unknown = external.iter().filter(|call| call.flops.is_none()).count();
    if unknown > 0 {
        advice.push(format!(
            "{unknown} calls of the host's operators have no count of operations: their times, and so the whole, may be longer"
        ));
    }
    if verdict.gain < LITTLE {
        advice.push("little or no gain is expected: nothing here is left to fuse".to_owned());
    }
    if explanation
        .kernels
        .iter()
        .any(|kernel| kernel.code == CodeKind::Interpreted)
    {
        advice.push(
            "kernels without machine code run in the interpreter, far slower than all else"
                .to_owned(),
        );
    }
    advice
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::HostFigures;

    /// Round numbers.
    pub fn figures() -> Figures {
        let level = |name: &str, bytes, bytes_per_second| Level {
            name: name.to_owned(),
            bytes,
            bytes_per_second,
        };
        Figures {
            threads: 1,
            levels: vec![
                level("cache", Some(1 << 20), 1e11),
                level("memory", None, 1e10),
            ],
            flops_per_second: 1e12,
            matrix_flops_per_second: Some(1e13),
            launch_seconds: 1e-6,
            host: HostFigures {
                dispatch_seconds: 5e-6,
                view_seconds: 1e-6,
                call_seconds: 1e-5,
            },
        }
    }

    fn work(bytes: u64, flops: u64) -> Work {
        Work {
            bytes,
            flops,
            products: 0,
            narrow: false,
        }
    }

    #[test]
    fn the_longest_part_is_the_bound() {
        let figures = figures();
        let bound = |bytes, flops| figures.expect(&work(bytes, flops), 1e-6).bound;
        assert_eq!(bound(100, 100), Bound::Launch);
        assert_eq!(bound(1 << 24, 1 << 20), Bound::Memory);
        assert_eq!(bound(1 << 20, 1 << 30), Bound::Arithmetic);
    }

    #[test]
    fn a_share_is_of_the_longer_of_memory_and_arithmetic() {
        let figures = figures();
        // 2^24 bytes at 10^10 a second, behind a launch of a microsecond.
        let copy = figures.expect(&work(1 << 24, 0), 1e-6);
        assert!((copy.roof_seconds - 1.677_721_6e-3).abs() < 1e-9);
        assert!((copy.roofline_share() - 1.677_721_6 / 1.678_721_6).abs() < 1e-9);
        assert_eq!(copy.roof_words(), "memory bandwidth");
        let near = figures.expect(&work(1 << 10, 0), 1e-6);
        assert_eq!((near.bound, near.roof), (Bound::Launch, Bound::Memory));
        assert_eq!(near.roof_words(), "the cache's bandwidth");
        assert!(near.roofline_share() < 0.02);
        let busy = figures.expect(&work(1 << 10, 1 << 30), 1e-6);
        assert_eq!(busy.roof_words(), "the peak of arithmetic");
    }

    #[test]
    fn the_work_of_a_product_with_a_vector_waits_for_memory() {
        let figures = figures();
        let mut roofs = Roofs::default();
        // A matrix of 2^20 numbers that is read once, and one that is used a thousand times.
        roofs.add(&figures.expect(&work(1 << 23, 1 << 21), 1.0), 3.0);
        roofs.add(&figures.expect(&work(1 << 10, 1 << 20), 1.0), 1.0);
        assert_eq!(roofs.larger(), Bound::Memory);
        assert!(roofs.share() > 0.5 && roofs.share() < 1.0);
        roofs.add(&figures.expect(&work(1 << 10, 1 << 40), 1.0), 1.0);
        assert_eq!(roofs.larger(), Bound::Arithmetic);
    }

    #[test]
    fn parts_are_summed_as_often_as_they_run() {
        let part =
            |compiled_seconds: f64, eager_seconds: f64, bound: Bound, advice: &str| Verdict {
                compiled_seconds,
                compiled_bytes: 100,
                shares: Shares {
                    memory: f64::from(u8::from(bound == Bound::Memory)),
                    arithmetic: f64::from(u8::from(bound == Bound::Arithmetic)),
                    ..Shares::default()
                },
                bound,
                roof: bound,
                roof_share: 1.0,
                eager_seconds,
                eager_bytes: 300,
                eager_operators: 3,
                eager_views: 1,
                gain: eager_seconds / compiled_seconds,
                compile_seconds: Some(1.0),
                break_even: None,
                advice: vec![advice.to_owned()],
                assumptions: vec![],
            };
        let whole = Verdict::together(&[
            (part(1.0, 2.0, Bound::Memory, "a"), 4.0),
            (part(2.0, 8.0, Bound::Arithmetic, "b"), 0.5),
        ])
        .unwrap();
        assert_eq!((whole.compiled_seconds, whole.eager_seconds), (5.0, 12.0));
        assert_eq!((whole.compiled_bytes, whole.eager_bytes), (450, 1350));
        assert_eq!((whole.shares.memory, whole.shares.arithmetic), (0.8, 0.2));
        assert_eq!((whole.bound, whole.gain), (Bound::Memory, 2.4));
        assert_eq!(whole.roof, Bound::Memory);
        // Two seconds of compiling, seven saved a call.
        assert_eq!(
            (whole.compile_seconds, whole.break_even),
            (Some(2.0), Some(1))
        );
        assert_eq!(whole.advice, ["a"]);
        assert!(Verdict::together(&[]).is_none());
    }

    #[test]
    fn data_comes_from_the_smallest_place_that_holds_it() {
        let figures = figures();
        assert_eq!(figures.expect(&work(1 << 20, 0), 0.0).level, "cache");
        let beyond = figures.expect(&work((1 << 20) + 1, 0), 0.0);
        assert_eq!(beyond.level, "memory");
        assert!((beyond.seconds - 1.048_577e-4).abs() < 1e-10);
    }

    #[test]
    fn a_product_is_two_operations_a_cycle_and_a_narrow_one_has_a_unit() {
        let figures = figures();
        let mut product = Work {
            products: 1 << 30,
            ..work(0, 1 << 30)
        };
        let seconds = |work: &Work| figures.expect(work, 0.0).seconds;
        assert!((seconds(&product) - (1u64 << 30) as f64 / 1e12).abs() < 1e-12);
        product.narrow = true;
        assert!((seconds(&product) - (1u64 << 30) as f64 / 1e13).abs() < 1e-12);
        assert!((seconds(&work(0, 1 << 30)) - (1u64 << 30) as f64 / 5e11).abs() < 1e-12);
    }
}
