//! The constructors that keep expressions canonical. Every rewrite here holds for all integers, given
//! only that divisors are not zero; rewrites that need ranges live in `simplify`.

use super::{Atom, Expr, Invalid, MAX_TERMS, Monomial, Repr, Sum, Term, floor_div_mod};
use std::cmp::Ordering;
use std::sync::Arc;

type Partial<T> = Result<T, Invalid>;

fn or_invalid(result: Partial<Expr>) -> Expr {
    result.unwrap_or_else(|why| Expr(Repr::Invalid(why)))
}

pub(super) fn from_atom(atom: Atom) -> Expr {
    let terms = vec![Term {
        monomial: vec![atom],
        coefficient: 1,
    }];
    Expr(Repr::Sum(Arc::new(Sum { terms, constant: 0 })))
}

pub(super) fn from_term(monomial: Monomial, coefficient: i64) -> Expr {
    finish(Sum {
        terms: vec![Term {
            monomial,
            coefficient,
        }],
        constant: 0,
    })
}

/// Wraps a sum whose terms are sorted and merged.
fn finish(sum: Sum) -> Expr {
    if sum.terms.is_empty() {
        Expr::constant(sum.constant)
    } else {
        Expr(Repr::Sum(Arc::new(sum)))
    }
}

fn valid(e: &Expr) -> Partial<()> {
    match e.0 {
        Repr::Invalid(why) => Err(why),
        Repr::Const(_) | Repr::Sum(_) => Ok(()),
    }
}

fn checked(value: Option<i64>) -> Partial<i64> {
    value.ok_or(Invalid::Overflow)
}

pub(super) fn add(a: &Expr, b: &Expr) -> Expr {
    or_invalid(try_add(a, b).map(fold))
}

/// Adds all before folding, so that the result does not depend on the order.
pub(super) fn sum_of(parts: impl IntoIterator<Item = Expr>) -> Expr {
    let collect = || {
        let (mut terms, mut constant) = (Vec::new(), 0i64);
        for part in parts {
            valid(&part)?;
            constant = checked(constant.checked_add(part.offset()))?;
            terms.extend_from_slice(part.terms());
        }
        merge(terms, constant)
    };
    or_invalid(collect().map(fold))
}

pub(super) fn sub(a: &Expr, b: &Expr) -> Expr {
    add(a, &scale(b, -1))
}

pub(super) fn scale(a: &Expr, factor: i64) -> Expr {
    or_invalid(try_scale(a, factor))
}

pub(super) fn mul(a: &Expr, b: &Expr) -> Expr {
    or_invalid(try_mul(a, b).map(fold))
}

fn try_scale(a: &Expr, factor: i64) -> Partial<Expr> {
    valid(a)?;
    if factor == 0 {
        return Ok(Expr::ZERO);
    }
    let constant = checked(a.offset().checked_mul(factor))?;
    let terms = a.terms().iter().map(|t| {
        let coefficient = checked(t.coefficient.checked_mul(factor))?;
        Ok(Term {
            monomial: t.monomial.clone(),
            coefficient,
        })
    });
    Ok(finish(Sum {
        terms: terms.collect::<Partial<_>>()?,
        constant,
    }))
}

/// Merges two sorted sums.
fn try_add(a: &Expr, b: &Expr) -> Partial<Expr> {
    valid(a)?;
    valid(b)?;
    let constant = checked(a.offset().checked_add(b.offset()))?;
    let (mut left, mut right) = (a.terms(), b.terms());
    let mut terms = Vec::with_capacity(left.len() + right.len());
    while let ([x, left_rest @ ..], [y, right_rest @ ..]) = (left, right) {
        match x.monomial.cmp(&y.monomial) {
            Ordering::Less => {
                terms.push(x.clone());
                left = left_rest;
            }
            Ordering::Greater => {
                terms.push(y.clone());
                right = right_rest;
            }
            Ordering::Equal => {
                let coefficient = checked(x.coefficient.checked_add(y.coefficient))?;
                if coefficient != 0 {
                    terms.push(Term {
                        monomial: x.monomial.clone(),
                        coefficient,
                    });
                }
                (left, right) = (left_rest, right_rest);
            }
        }
    }
    terms.extend_from_slice(left);
    terms.extend_from_slice(right);
    if terms.len() > MAX_TERMS {
        return Err(Invalid::TooManyTerms);
    }
    Ok(finish(Sum { terms, constant }))
}

fn try_mul(a: &Expr, b: &Expr) -> Partial<Expr> {
    valid(a)?;
    valid(b)?;
    if let Some(factor) = a.as_const() {
        return try_scale(b, factor);
    }
    if let Some(factor) = b.as_const() {
        return try_scale(a, factor);
    }
    if a.terms().len() * b.terms().len() > MAX_TERMS {
        return Err(Invalid::TooManyTerms);
    }
    let mut terms = Vec::with_capacity((a.terms().len() + 1) * (b.terms().len() + 1));
    for x in a.terms() {
        for y in b.terms() {
            let mut monomial = [x.monomial.as_slice(), &y.monomial].concat();
            monomial.sort();
            if monomial.len() > MAX_TERMS {
                return Err(Invalid::TooManyTerms);
            }
            terms.push(Term {
                monomial,
                coefficient: checked(x.coefficient.checked_mul(y.coefficient))?,
            });
        }
    }
    for (side, factor) in [(a, b.offset()), (b, a.offset())] {
        if factor != 0 {
            terms.extend_from_slice(try_scale(side, factor)?.terms());
        }
    }
    merge(terms, checked(a.offset().checked_mul(b.offset()))?)
}

/// A canonical sum from terms in any order, with repetitions.
fn merge(mut terms: Vec<Term>, constant: i64) -> Partial<Expr> {
    terms.sort_by(|a, b| a.monomial.cmp(&b.monomial));
    let mut merged: Vec<Term> = Vec::with_capacity(terms.len());
    for term in terms {
        match merged.last_mut() {
            Some(last) if last.monomial == term.monomial => {
                last.coefficient = checked(last.coefficient.checked_add(term.coefficient))?;
            }
            _ => merged.push(term),
        }
    }
    merged.retain(|t| t.coefficient != 0);
    if merged.len() > MAX_TERMS {
        return Err(Invalid::TooManyTerms);
    }
    Ok(finish(Sum {
        terms: merged,
        constant,
    }))
}

/// Puts quotient and remainder together, in sums that hold two of the three sides of
/// `p = n*(p//n) + p%n`, and leaves the third.
///
/// Each step takes two things out and puts one in; the bound is there for sums of such depth that
/// the new one opens into more.
fn fold(mut sum: Expr) -> Expr {
    for _ in 0..MAX_FOLDS {
        if sum.terms().len() < 2 {
            break;
        }
        match sum.terms().iter().find_map(|term| fold_at(&sum, term)) {
            Some(folded) => sum = folded,
            None => break,
        }
    }
    sum
}

const MAX_FOLDS: usize = 32;

/// One step of [`fold`] that takes out `term`, a remainder or a multiple of a quotient.
fn fold_at(sum: &Expr, term: &Term) -> Option<Expr> {
    let this = || from_term(term.monomial.clone(), term.coefficient);
    let replace = |partner: &Expr, becomes: &dyn Fn() -> Expr| -> Option<Expr> {
        if partner.terms().is_empty() || !contains(sum, partner) {
            return None;
        }
        let gone = try_add(&this(), partner).ok()?;
        let rest = try_add(sum, &try_scale(&gone, -1).ok()?).ok()?;
        try_add(&rest, &becomes()).ok()
    };
    if let [Atom::Mod(p, n)] = term.monomial.as_slice() {
        let k = term.coefficient;
        let multiple = try_mul(&floordiv(p, n), n).ok()?;
        // k*(p%n) + k*n*(p//n) = k*p, and k*(p%n) - k*p = -k*n*(p//n)
        return replace(&scale(&multiple, k), &|| scale(p, k)).or_else(|| {
            let minus = k.checked_neg()?;
            replace(&scale(p, minus), &|| scale(&multiple, minus))
        });
    }
    // k*n*(p//n) - k*p = -k*(p%n)
    term.monomial.iter().enumerate().find_map(|(i, atom)| {
        let Atom::FloorDiv(p, n) = atom else {
            return None;
        };
        let mut others = term.monomial.clone();
        others.remove(i);
        let k = match n.as_const() {
            Some(n) if others.is_empty() && term.coefficient % n == 0 => {
                term.coefficient.checked_div(n)?
            }
            Some(_) => return None,
            None => ratio(&product(others, term.coefficient), n)?,
        };
        let minus = k.checked_neg()?;
        replace(&scale(p, minus), &|| scale(&modulo(p, n), minus))
    })
}

/// `coefficient` times the atoms, of which there may be none.
fn product(monomial: Monomial, coefficient: i64) -> Expr {
    if monomial.is_empty() {
        Expr::constant(coefficient)
    } else {
        from_term(monomial, coefficient)
    }
}

fn add_plain(a: &Expr, b: &Expr) -> Expr {
    or_invalid(try_add(a, b))
}

/// Whether all terms of `part` stand in `sum` with the same coefficients (constants aside).
fn contains(sum: &Expr, part: &Expr) -> bool {
    part.terms()
        .iter()
        .all(|t| sum.terms().binary_search(t).is_ok())
}

pub(super) fn floordiv(a: &Expr, b: &Expr) -> Expr {
    or_invalid(divide(a, b, Division::Quotient))
}

pub(super) fn modulo(a: &Expr, b: &Expr) -> Expr {
    or_invalid(divide(a, b, Division::Remainder))
}

#[derive(Clone, Copy, PartialEq)]
enum Division {
    Quotient,
    Remainder,
}

fn divide(a: &Expr, b: &Expr, want: Division) -> Partial<Expr> {
    valid(a)?;
    valid(b)?;
    if let (Some(a), Some(b)) = (a.as_const(), b.as_const()) {
        let (q, r) = floor_div_mod(a.into(), b.into()).ok_or(Invalid::ZeroDivisor)?;
        let value = if want == Division::Quotient { q } else { r };
        return i64::try_from(value)
            .map(Expr::constant)
            .map_err(|_| Invalid::Overflow);
    }
    match b.as_const() {
        Some(0) => Err(Invalid::ZeroDivisor),
        Some(c) if c < 0 => {
            // a // -c = -a // c, and a % -c = -(-a % c).
            let (a, b) = (try_scale(a, -1)?, try_scale(b, -1)?);
            match want {
                Division::Quotient => divide(&a, &b, want),
                Division::Remainder => try_scale(&divide(&a, &b, want)?, -1),
            }
        }
        Some(c) => match want {
            Division::Quotient => quotient_by_const(a, c),
            Division::Remainder => remainder_by_const(a, c),
        },
        None => divide_by_expr(a, b, want),
    }
}

/// Splits `a = c*q + r`, where no coefficient of `r` reaches `c` and its constant is in `0..c`.
fn split_by_const(a: &Expr, c: i64) -> Partial<(Expr, Expr)> {
    let part = |f: &dyn Fn(i64) -> i64, constant: i64| {
        let terms = a.terms().iter().filter_map(|t| {
            let coefficient = f(t.coefficient);
            (coefficient != 0).then(|| Term {
                monomial: t.monomial.clone(),
                coefficient,
            })
        });
        finish(Sum {
            terms: terms.collect(),
            constant,
        })
    };
    // Coefficients are cut toward zero, so that -x stays -x instead of becoming (c-1)*x - c*x.
    let q = part(&|k| k / c, a.offset().div_euclid(c));
    let r = part(&|k| k % c, a.offset().rem_euclid(c));
    Ok((q, r))
}

/// The sum without the term of that monomial.
fn remove_term(e: &Expr, monomial: &[Atom]) -> Expr {
    let terms = e
        .terms()
        .iter()
        .filter(|t| t.monomial != monomial)
        .cloned()
        .collect();
    finish(Sum {
        terms,
        constant: e.offset(),
    })
}

/// The greatest common divisor of the coefficients and `c`.
fn common_factor(r: &Expr, c: i64) -> i64 {
    r.terms().iter().fold(c, |g, t| gcd(g, t.coefficient))
}

/// Never negative; `gcd(0, x)` is `|x|` (as far as it fits).
pub(super) fn gcd(a: i64, b: i64) -> i64 {
    let (mut a, mut b) = (a.unsigned_abs(), b.unsigned_abs());
    while b != 0 {
        (a, b) = (b, a % b);
    }
    i64::try_from(a).unwrap_or(1)
}

/// Every coefficient divided by `g`, which divides them all; the constant by floor.
fn shrink(r: &Expr, g: i64) -> Expr {
    let terms = r.terms().iter().map(|t| Term {
        monomial: t.monomial.clone(),
        coefficient: t.coefficient / g,
    });
    finish(Sum {
        terms: terms.collect(),
        constant: r.offset().div_euclid(g),
    })
}

fn quotient_by_const(a: &Expr, c: i64) -> Partial<Expr> {
    let (q, r) = split_by_const(a, c)?;
    if r.terms().is_empty() {
        return Ok(q);
    }
    // (g*x + k) // (g*c) = (x + k//g) // c
    let g = common_factor(&r, c);
    let (r, c) = (shrink(&r, g), c / g);
    if c == 1 {
        return try_add(&q, &r).map(fold);
    }
    if let Some((merged, divisor)) = merge_nested(&r, c) {
        return try_add(&q, &quotient_by_const(&merged, divisor)?).map(fold);
    }
    try_add(&q, &from_atom(Atom::FloorDiv(r, Expr::constant(c)))).map(fold)
}

/// `(s + p//m) // c = (m*s + p) // (m*c)` for a constant `m > 0`, when `p//m` is the only division.
fn merge_nested(r: &Expr, c: i64) -> Option<(Expr, i64)> {
    let mut divisions = r
        .terms()
        .iter()
        .filter(|t| matches!(t.monomial.as_slice(), [Atom::FloorDiv(..)]));
    let (term, None) = (divisions.next()?, divisions.next()) else {
        return None;
    };
    let [Atom::FloorDiv(p, m)] = term.monomial.as_slice() else {
        return None;
    };
    let m = m.as_const().filter(|&m| m > 0 && term.coefficient == 1)?;
    let rest = remove_term(r, &term.monomial);
    let merged = try_add(&try_scale(&rest, m).ok()?, p).ok()?;
    Some((merged, m.checked_mul(c)?))
}

fn remainder_by_const(a: &Expr, c: i64) -> Partial<Expr> {
    let (_, mut r) = split_by_const(a, c)?;
    // (p % m) % c = p % c where c divides m.
    let nested = r.terms().iter().find_map(|t| match t.monomial.as_slice() {
        [Atom::Mod(p, m)] if m.as_const().is_some_and(|m| m % c == 0) => {
            Some((t.clone(), p.clone()))
        }
        _ => None,
    });
    if let Some((term, p)) = nested {
        let rest = remove_term(&r, &term.monomial);
        let opened = try_add(&rest, &try_scale(&p, term.coefficient)?)?;
        return remainder_by_const(&opened, c);
    }
    if r.terms().is_empty() {
        return Ok(r);
    }
    // (g*x + k) % (g*c) = g * ((x + k//g) % c) + k % g
    let g = common_factor(&r, c);
    let inner = c / g;
    let low = Expr::constant(r.offset().rem_euclid(g));
    r = shrink(&r, g);
    if inner == 1 {
        return Ok(low);
    }
    if g > 1 {
        return try_add(&try_scale(&remainder_by_const(&r, inner)?, g)?, &low);
    }
    Ok(from_atom(Atom::Mod(r, Expr::constant(c))))
}

fn divide_by_expr(a: &Expr, b: &Expr, want: Division) -> Partial<Expr> {
    let (mut q, mut r) = (Expr::ZERO, a.clone());
    if let Some(k) = ratio(a, b) {
        (q, r) = (Expr::constant(k), Expr::ZERO);
    } else if let ([divisor], 0) = (b.terms(), b.offset()) {
        // Terms that the divisor, a single product, divides go out whole.
        for term in a.terms() {
            if let Some(part) = exact_quotient(term, divisor) {
                q = try_add(&q, &part)?;
                r = remove_term(&r, &term.monomial);
            }
        }
    }
    if r.is_const(0) {
        return Ok(if want == Division::Quotient {
            q
        } else {
            Expr::ZERO
        });
    }
    // (x*n) // (y*n) = x // y and (x*n) % (y*n) = n * (x % y)
    let shared = shared_factors(&r, b);
    if !shared.is_empty() {
        let (r, b) = (strip(&r, &shared)?, strip(b, &shared)?);
        let inner = divide(&r, &b, want)?;
        return match want {
            Division::Quotient => try_add(&q, &inner).map(fold),
            Division::Remainder => try_mul(&inner, &from_term(shared, 1)).map(fold),
        };
    }
    match want {
        Division::Quotient => try_add(&q, &from_atom(Atom::FloorDiv(r, b.clone()))).map(fold),
        Division::Remainder => Ok(from_atom(Atom::Mod(r, b.clone()))),
    }
}

/// The integer `k` with `a = k*b`, if there is one.
fn ratio(a: &Expr, b: &Expr) -> Option<i64> {
    let (x, y) = (a.terms().first()?, b.terms().first()?);
    let k = x.coefficient.checked_div(y.coefficient)?;
    (try_scale(b, k).ok()? == *a).then_some(k)
}

fn exact_quotient(term: &Term, divisor: &Term) -> Option<Expr> {
    let coefficient = term.coefficient.checked_div(divisor.coefficient)?;
    if term.coefficient.checked_rem(divisor.coefficient)? != 0 {
        return None;
    }
    let monomial = without(&term.monomial, &divisor.monomial)?;
    Some(product(monomial, coefficient))
}

/// The product without the factors of `part`, if it has them all. Both are sorted.
fn without(monomial: &[Atom], part: &[Atom]) -> Option<Monomial> {
    let mut rest = monomial.to_vec();
    for atom in part {
        let at = rest.iter().position(|a| a == atom)?;
        rest.remove(at);
    }
    Some(rest)
}

/// The atoms (with powers) that every term of both has; none where a constant is added.
fn shared_factors(a: &Expr, b: &Expr) -> Monomial {
    if a.offset() != 0 || b.offset() != 0 {
        return Vec::new();
    }
    let mut terms = a.terms().iter().chain(b.terms());
    let mut shared = terms.next().map(|t| t.monomial.clone()).unwrap_or_default();
    for term in terms {
        let mut rest = term.monomial.clone();
        shared.retain(|atom| match rest.iter().position(|a| a == atom) {
            Some(at) => {
                rest.remove(at);
                true
            }
            None => false,
        });
    }
    shared
}

fn strip(e: &Expr, factors: &[Atom]) -> Partial<Expr> {
    let mut constant = 0i64;
    let mut terms = Vec::new();
    for t in e.terms() {
        let monomial = without(&t.monomial, factors).unwrap_or_else(|| t.monomial.clone());
        if monomial.is_empty() {
            constant = checked(constant.checked_add(t.coefficient))?;
        } else {
            terms.push(Term {
                monomial,
                coefficient: t.coefficient,
            });
        }
    }
    merge(terms, constant)
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Extremum {
    Min,
    Max,
}

impl Extremum {
    fn open(self, e: &Expr) -> Option<&[Expr]> {
        match (self, e.as_atom()?) {
            (Extremum::Min, Atom::Min(args)) | (Extremum::Max, Atom::Max(args)) => Some(args),
            _ => None,
        }
    }

    fn atom(self, args: Vec<Expr>) -> Atom {
        match self {
            Extremum::Min => Atom::Min(args),
            Extremum::Max => Atom::Max(args),
        }
    }

    /// Whether an argument that exceeds another one by `difference` (at least) can be dropped.
    fn drops(self, difference: i128) -> bool {
        match self {
            Extremum::Min => difference >= 0,
            Extremum::Max => difference <= 0,
        }
    }
}

/// `a - b`, where it does not depend on any symbol.
fn constant_difference(a: &Expr, b: &Expr) -> Option<i128> {
    (a.terms() == b.terms()).then(|| i128::from(a.offset()) - i128::from(b.offset()))
}

/// The minimum or maximum of all `args` (at least one).
pub(super) fn extremum(which: Extremum, args: Vec<Expr>) -> Expr {
    if let Some(invalid) = args.iter().find(|a| valid(a).is_err()) {
        return invalid.clone();
    }
    let mut flat: Vec<Expr> = Vec::new();
    for arg in args {
        match which.open(&arg) {
            Some(inner) => flat.extend_from_slice(inner),
            None => flat.push(arg),
        }
    }
    flat.sort();
    flat.dedup();
    // Arguments a constant apart from each other: one of them decides.
    let mut kept: Vec<Expr> = Vec::new();
    'next: for arg in flat {
        for other in &mut kept {
            if let Some(difference) = constant_difference(&arg, other) {
                if !which.drops(difference) {
                    *other = arg;
                }
                continue 'next;
            }
        }
        kept.push(arg);
    }
    kept.sort();
    if kept.len() > MAX_TERMS {
        return Expr(Repr::Invalid(Invalid::TooManyTerms));
    }
    match kept.as_slice() {
        [] => Expr::ZERO,
        [one] => one.clone(),
        _ => from_atom(which.atom(kept)),
    }
}

/// `p % n` written as `p - n*(p//n)` at the top of the sum, where equal expressions meet in one form.
pub(super) fn expand_mods(e: &Expr) -> Expr {
    if valid(e).is_err() {
        return e.clone();
    }
    let mut total = Expr::constant(e.offset());
    for term in e.terms() {
        let mut product = Expr::constant(term.coefficient);
        for atom in &term.monomial {
            let factor = match atom {
                Atom::Mod(p, n) => {
                    let multiple = or_invalid(try_mul(&floordiv(p, n), n));
                    add_plain(&expand_mods(p), &scale(&expand_mods(&multiple), -1))
                }
                Atom::Symbol(_) | Atom::FloorDiv(..) | Atom::Min(_) | Atom::Max(_) => {
                    from_atom(atom.clone())
                }
            };
            product = or_invalid(try_mul(&product, &factor));
        }
        total = add_plain(&total, &product);
    }
    total
}
