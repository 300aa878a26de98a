//! Rules one by one, then random expressions against a naive evaluation.

use super::*;
use proptest::prelude::*;

fn e(text: &str) -> Expr {
    text.parse().unwrap_or_else(|err| panic!("{text}: {err}"))
}

/// s0 in 0..=1000, s1 in 0..8, s2 in 1..=64 and divisible by 16, s3 in 0..s4, s4 in 1..=4096.
fn ranges() -> Ranges {
    let mut ranges = Ranges::new();
    ranges
        .set(Symbol(0), 0, 1000)
        .set(Symbol(1), 0, 7)
        .set(Symbol(2), 16, 64)
        .set_divisor(Symbol(2), 16);
    ranges
        .set(Symbol(3), 0, i64::MAX)
        .set_below(Symbol(3), Symbol(4))
        .set(Symbol(4), 1, 4096);
    ranges
}

#[test]
fn building_simplifies() {
    let cases = [
        ("s0 + s0", "2*s0"),
        ("(s0 + 1)*(s0 - 1)", "s0*s0 - 1"),
        ("s1*s0 - s0*s1", "0"),
        ("(8*s0)//8", "s0"),
        ("(8*s0 + 3)//8", "s0"),
        ("(8*s0 + s1)//8", "s0 + s1//8"),
        ("(6*s0 + 4)//4", "(3*s0)//2 + 1"),
        ("(s0 - 1)//8", "(s0 + 7)//8 - 1"),
        ("(s0//4)//8", "s0//32"),
        ("(s0//4 + 3)//8", "(s0 + 12)//32"),
        ("s0 // -8", "(-s0)//8"),
        ("(s0*s1)//s1", "s0"),
        ("(s0*s1 + s2)//s1", "s0 + s2//s1"),
        ("(s0*s2)//(s1*s2)", "s0//s1"),
        ("(2*s0 + 2)//(s0 + 1)", "2"),
        ("(8*s0 + s1)%8", "s1%8"),
        ("(8*s0)%8", "0"),
        ("(6*s0 + 3)%4", "2*((s0 + s0 + s0 + 1)%2) + 1"),
        ("(s0%32)%8", "s0%8"),
        ("(s0%32 + s1)%8", "(s0 + s1)%8"),
        ("(s0*s2)%(s1*s2)", "s2*(s0%s1)"),
        ("s0*s1 % s1", "0"),
        ("s0 - s0%8", "8*(s0//8)"),
        ("8*(s0//8) + s0%8", "s0"),
        ("s0 - 8*(s0//8)", "s0%8"),
        ("s1*(s0//s1) + s0%s1", "s0"),
        ("s0 - s1*(s0//s1)", "s0%s1"),
        ("min(s0, s0 + 1)", "s0"),
        ("max(s0, s0 + 1, s0 - 3)", "s0 + 1"),
        ("min(s0, min(s1, 3), 5)", "min(s1, s0, 3)"),
        ("min(s0, s0)", "s0"),
        ("ceildiv(s0, 8)", "(s0 + 7)//8"),
        ("-7 // 2", "-4"),
        ("-7 % 2", "1"),
        ("7 % -2", "-1"),
        ("-9223372036854775808", "-9223372036854775808"),
    ];
    for (input, expected) in cases {
        assert_eq!(e(input), e(expected), "{input}");
    }
    assert_eq!(e("2*(s0//8) - s1 + 3").to_string(), "-s1 + 2*(s0//8) + 3");
    assert_eq!(e("s0//(s1*2)").to_string(), "s0//(2*s1)");
}

#[test]
fn ranges_simplify_further() {
    let cases = [
        ("s1//8", "0"),
        ("s1%8", "s1"),
        ("(8*s0 + s1)//8", "s0"),
        ("(8*s0 + s1)%8", "s1"),
        ("(8*s0 + s1)//32", "s0//4"),
        ("(8*s0 + s1)%32", "8*(s0%4) + s1"),
        ("(s1 + 16)%16", "s1"),
        ("s2%16", "0"),
        ("min(s1, 8)", "s1"),
        ("max(s1, s0 + 7)", "s0 + 7"),
        ("max(s1, 0, s2)", "s2"),
        ("s3//s4", "0"),
        ("s3%s4", "s3"),
        ("(s0*s4 + s3)//s4", "s0"),
        ("(s0*s4 + s3)%s4", "s3"),
        ("min(s3, s4)", "s3"),
    ];
    for (input, expected) in cases {
        assert_eq!(e(input).simplify(&ranges()), e(expected), "{input}");
    }
}

#[test]
fn bounds_and_proofs() {
    let r = ranges();
    let cases = [
        ("2*s1 - 3", Interval::new(-3, 11)),
        ("s0*s1", Interval::new(0, 7000)),
        ("s0//8", Interval::new(0, 125)),
        ("s0%8", Interval::new(0, 7)),
        ("min(s0, s1)", Interval::new(0, 7)),
        ("s9", Interval::ALL),
        ("s9*s9", Interval::new(0, i64::MAX)),
        ("s9%5", Interval::new(0, 4)),
        ("s3 + 1", Interval::new(1, i64::MAX)),
    ];
    for (input, expected) in cases {
        assert_eq!(e(input).bounds(&r), expected, "{input}");
    }
    assert!(e("s3").provably_lt(&e("s4"), &r));
    assert!(!e("s3 + 1").provably_lt(&e("s4"), &r));
    assert!(e("s3 + s4*s1").provably_lt(&e("8*s4"), &r));
    assert!(e("s2*s3 + s2").provably_le(&e("s2*s4"), &r));
    assert!(e("s1").provably_le(&e("7"), &r) && !e("s1").provably_lt(&e("7"), &r));
    assert!(e("2*s9 - s9%8").provably_eq(&e("s9 + 8*(s9//8)"), &r));
    assert!(!e("s9").provably_eq(&e("s8"), &r));
    assert!(e("s2*s9 + 32").is_divisible_by(16, &r) && !e("s2*s9 + 8").is_divisible_by(16, &r));
    assert!(e("s2*4//32*64").is_divisible_by(128, &r));
    assert!(!e("s9").is_divisible_by(0, &r));
    assert_eq!(
        format!("{} {}", Interval::new(0, 7), Interval::ALL),
        "[0, 7] (-inf, inf)"
    );
}

#[test]
fn what_has_no_meaning_is_an_error() {
    let big = Expr::constant(i64::MAX);
    let overflow = &big + 1;
    assert_eq!(overflow.check().unwrap_err().code, Code::SizeOverflow);
    assert_eq!(
        (overflow.clone() - 1).check().unwrap_err().code,
        Code::SizeOverflow
    );
    assert_eq!(
        overflow.eval(&|_| None).unwrap_err().code,
        Code::SizeOverflow
    );
    assert!(!overflow.provably_eq(&overflow, &Ranges::new()) && overflow.as_const().is_none());
    assert!(
        !overflow.provably_le(&overflow, &Ranges::new())
            && !overflow.is_divisible_by(1, &Ranges::new())
    );
    assert!(serde_json::to_string(&overflow).is_err());
    assert_eq!(
        e("s0").floordiv(0).check().unwrap_err().code,
        Code::DivisionByZero
    );
    assert_eq!(
        Expr::constant(i64::MIN)
            .floordiv(-1)
            .check()
            .unwrap_err()
            .code,
        Code::SizeOverflow
    );
    assert_eq!(
        Expr::from(usize::MAX).check().unwrap_err().code,
        Code::SizeOverflow
    );

    let five = |_| Some(5);
    assert_eq!(
        e("s0//(s1 - s2)").eval(&five).unwrap_err().code,
        Code::DivisionByZero
    );
    assert_eq!(
        e("s0").eval(&|_| None).unwrap_err().code,
        Code::UnboundSymbol
    );
    assert_eq!(
        e("s0*s0").eval(&|_| Some(1 << 40)).unwrap_err().code,
        Code::SizeOverflow
    );
    // The expanded product passes 2^70 on the way to zero.
    assert_eq!(e("(s0 - s1)*s2").eval(&|_| Some(1 << 35)), Ok(0));
}

#[test]
fn bad_text_is_refused_with_its_place() {
    let cases = [
        ("", Code::Syntax),
        ("s0 +", Code::Syntax),
        ("s0 s1", Code::Syntax),
        ("x", Code::Syntax),
        ("min()", Code::Syntax),
        ("(s0", Code::Syntax),
        ("s0/2", Code::Syntax),
        ("ceildiv(s0)", Code::ArityMismatch),
        ("99999999999999999999", Code::InvalidLiteral),
        ("9223372036854775807 + 1", Code::SizeOverflow),
        ("s0 % 0", Code::DivisionByZero),
    ];
    for (input, code) in cases {
        let error = input.parse::<Expr>().unwrap_err();
        assert_eq!(error.code, code, "{input}");
        assert!(error.at.is_some(), "{input}");
    }
    assert_eq!(
        "(".repeat(100_000).parse::<Expr>().unwrap_err().code,
        Code::NestedTooDeep
    );
    assert_eq!(
        "-".repeat(100_000).parse::<Expr>().unwrap_err().code,
        Code::NestedTooDeep
    );
    let product: Vec<String> = (0..40)
        .map(|i| format!("(s{i} + s{} + 1)", i + 100))
        .collect();
    assert_eq!(
        product.join("*").parse::<Expr>().unwrap_err().code,
        Code::TooLarge
    );
}

#[test]
fn small_conveniences() {
    let x = Expr::symbol(Symbol(0));
    assert_eq!(x.round_up(16), e("16*((s0 + 15)//16)"));
    assert_eq!(x.as_symbol(), Some(Symbol(0)));
    assert_eq!((&x + 1).as_symbol(), None);
    assert_eq!(e("s0*s1 + s2//s3").symbols().len(), 4);
    assert_eq!(
        e("s0*s1 + s0//8").substitute(&|s| (s.0 == 0).then(|| Expr::from(24))),
        e("24*s1 + 3")
    );
    assert_eq!(
        [1, 2, 3].map(Expr::constant).into_iter().product::<Expr>(),
        6
    );
    assert_eq!(size_of::<Expr>(), 16);
    assert_eq!(
        [
            x.clone().min(e("s1")),
            std::cmp::min(e("s1"), x.clone()),
            Expr::min(&x, e("s1"))
        ],
        [(); 3].map(|()| e("min(s0, s1)"))
    );
    assert_eq!(x.clone().max(e("s1")), e("max(s0, s1)"));
    assert_eq!(x.clone().clamp(e("s1"), e("s2")), e("min(max(s0, s1), s2)"));
    let json = serde_json::to_string(&e("s0*8 + 1")).unwrap();
    assert_eq!(json, "\"8*s0 + 1\"");
    assert_eq!(serde_json::from_str::<Expr>(&json).unwrap(), e("8*s0 + 1"));
}

/// An expression as written, evaluated without any rewriting: the oracle.
#[derive(Clone, Debug)]
enum Tree {
    Const(i64),
    Symbol(u32),
    Binary(char, Box<Tree>, Box<Tree>),
}

impl Tree {
    fn eval(&self, values: &[i64]) -> Option<i128> {
        match self {
            Tree::Const(c) => Some((*c).into()),
            Tree::Symbol(s) => Some(values[*s as usize].into()),
            Tree::Binary(op, a, b) => {
                let (a, b) = (a.eval(values)?, b.eval(values)?);
                match op {
                    '+' => a.checked_add(b),
                    '-' => a.checked_sub(b),
                    '*' => a.checked_mul(b),
                    '/' => floor_div_mod(a, b).map(|d| d.0),
                    '%' => floor_div_mod(a, b).map(|d| d.1),
                    '<' => Some(a.min(b)),
                    _ => Some(a.max(b)),
                }
            }
        }
    }

    fn build(&self) -> Expr {
        match self {
            Tree::Const(c) => Expr::constant(*c),
            Tree::Symbol(s) => Expr::symbol(Symbol(*s)),
            Tree::Binary(op, a, b) => {
                let (a, b) = (a.build(), b.build());
                match op {
                    '+' => a + b,
                    '-' => a - b,
                    '*' => a * b,
                    '/' => a.floordiv(b),
                    '%' => a.modulo(b),
                    '<' => a.min(b),
                    _ => a.max(b),
                }
            }
        }
    }
}

fn tree() -> impl Strategy<Value = Tree> {
    let leaf = prop_oneof![
        2 => (-9i64..=9).prop_map(Tree::Const),
        2 => prop::sample::select(&[2i64, 4, 8, 12, 32]).prop_map(Tree::Const),
        4 => (0u32..3).prop_map(Tree::Symbol),
        1 => prop::sample::select(EXTREMES).prop_map(Tree::Const),
    ];
    leaf.prop_recursive(5, 24, 2, |inner| {
        let op = prop_oneof![
            Just('+'),
            Just('-'),
            Just('*'),
            Just('/'),
            Just('/'),
            Just('%'),
            Just('%'),
            Just('<'),
            Just('>')
        ];
        (op, inner.clone(), inner).prop_map(|(op, a, b)| Tree::Binary(op, a.into(), b.into()))
    })
}

/// Where arithmetic on `i64` goes wrong first.
const EXTREMES: &[i64] = &[
    i64::MIN,
    i64::MIN + 1,
    i64::MAX,
    i64::MAX - 1,
    -1 << 62,
    1 << 62,
    1 << 32,
    1 << 31,
];

/// Bounds for three symbols, and values within them.
fn ranged_values() -> impl Strategy<Value = (Vec<(i64, i64)>, Vec<i64>)> {
    let near = (-20i64..60, 0i64..40)
        .prop_flat_map(|(lo, width)| (Just((lo, lo + width)), lo..=lo + width));
    let extreme = prop::sample::select(EXTREMES);
    let far = (extreme.clone(), extreme.clone(), extreme)
        .prop_map(|(a, b, value)| ((a.min(b).min(value), a.max(b).max(value)), value));
    let one = prop_oneof![8 => near, 1 => far];
    prop::collection::vec(one, 3).prop_map(|list| list.into_iter().unzip())
}

proptest! {
    #[test]
    fn rewriting_keeps_the_value(tree in tree(), (bounds, values) in ranged_values()) {
        let lookup = |s: Symbol| values.get(s.0 as usize).copied();
        let mut ranges = Ranges::new();
        for (i, (lo, hi)) in (0..).zip(&bounds) {
            ranges.set(Symbol(i), *lo, *hi);
        }
        let built = tree.build();
        // Where the source divides by zero or overflows, anything may come out.
        let Some(expected) = tree.eval(&values).and_then(|v| i64::try_from(v).ok()) else { return Ok(()) };
        if built.check().is_err() {
            return Ok(());
        }
        let simplified = built.simplify(&ranges);
        for form in [&built, &simplified] {
            match form.eval(&lookup) {
                Ok(value) => prop_assert_eq!(value, expected, "{} became {}", built, form),
                // Another order of factors may pass 128 bits where the source did not.
                Err(error) => prop_assert_eq!(error.code, Code::SizeOverflow, "{}", form),
            }
            let interval = form.bounds(&ranges);
            prop_assert!(interval.contains(expected), "{} in {} is {}", form, interval, expected);
            let divisor = form.known_divisor(&ranges);
            prop_assert!(if divisor == 0 { expected == 0 } else { expected % divisor == 0 }, "{} by {}", form, divisor);
        }
        let constants = |s: Symbol| lookup(s).map(Expr::constant);
        let substituted = built.substitute(&constants);
        prop_assert!(substituted.check().is_err() || substituted == expected, "{}", substituted);
    }

    #[test]
    fn proofs_hold(a in tree(), b in tree(), (bounds, values) in ranged_values()) {
        let mut ranges = Ranges::new();
        for (i, (lo, hi)) in (0..).zip(&bounds) {
            ranges.set(Symbol(i), *lo, *hi);
        }
        // s0 < s1 wherever the values happen to satisfy it.
        if values[0] < values[1] {
            ranges.set_below(Symbol(0), Symbol(1));
        }
        let (Some(x), Some(y)) = (a.eval(&values), b.eval(&values)) else { return Ok(()) };
        let (a, b) = (a.build(), b.build());
        prop_assert!(!a.provably_lt(&b, &ranges) || x < y, "{} < {}", a, b);
        prop_assert!(!a.provably_le(&b, &ranges) || x <= y, "{} <= {}", a, b);
        prop_assert!(!a.provably_eq(&b, &ranges) || x == y, "{} == {}", a, b);
    }

    #[test]
    fn text_round_trips(tree in tree()) {
        let built = tree.build();
        if built.check().is_ok() {
            let text = built.to_string();
            prop_assert_eq!(text.parse::<Expr>().unwrap(), built, "{}", text);
        }
    }

    #[test]
    fn any_text_is_survived(text in "[s0-9+*/%(),minax -]{0,40}|.*") {
        if let Ok(expr) = text.parse::<Expr>() {
            prop_assert_eq!(expr.to_string().parse::<Expr>().unwrap(), expr);
        }
    }
}
