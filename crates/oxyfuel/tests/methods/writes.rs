//! Methods that end in `_`, and `+=` and its like: they write what the method without the `_` returns, eagerly and compiled, and every view sees it.

use crate::{ints, numbers};
use oxyfuel::{Code, DType, Meet, Options, Result, Tensor, compile};

/// A method, its form that writes, and what it takes beside the tensor: two tensors, of floats and of positions.
struct Pair {
    name: &'static str,
    new: fn(&Tensor, &Tensor, &Tensor) -> Tensor,
    write: fn(&mut Tensor, &Tensor, &Tensor) -> Result<()>,
}

macro_rules! pairs {
    ($y:ident $i:ident; $($name:ident $in_place:ident ($($argument:expr),*);)*) => {
        const PAIRS: &[Pair] = &[$(Pair {
            name: stringify!($name),
            new: |x, $y, $i| { let _ = ($y, $i); x.$name($($argument),*) },
            write: |x, $y, $i| { let _ = ($y, $i); x.$in_place($($argument),*) },
        }),*];
    };
}

pairs! { y i;
    add add_ (y); sub sub_ (2.0); mul mul_ (y); div div_ (y); div_floor div_floor_ (0.5); remainder remainder_ (1.5); fmod fmod_ (1.5); pow pow_ (2); maximum maximum_ (y);
    minimum minimum_ (0.0); atan2 atan2_ (y); eq eq_ (y); lt lt_ (0.0); ge ge_ (y);
    neg neg_ (); abs abs_ (); sign sign_ (); relu relu_ (); silu silu_ (); sigmoid sigmoid_ (); tanh tanh_ (); exp exp_ (); expm1 expm1_ (); log log_ (); log1p log1p_ (); sqrt sqrt_ ();
    rsqrt rsqrt_ (); reciprocal reciprocal_ (); erf erf_ (); sin sin_ (); cos cos_ (); floor floor_ (); ceil ceil_ (); round round_ (); trunc trunc_ (); asin asin_ (); sinh sinh_ ();
    leaky_relu leaky_relu_ (0.1); elu elu_ (1.0); selu selu_ (); celu celu_ (2.0); hardtanh hardtanh_ (-1.0, 1.0); relu6 relu6_ (); hardsigmoid hardsigmoid_ (); hardswish hardswish_ ();
    mish mish_ (); threshold threshold_ (0.5, -1.0); square square_ (); frac frac_ (); copysign copysign_ (y); hypot hypot_ (y); xlogy xlogy_ (y); heaviside heaviside_ (y); sinc sinc_ ();
    lerp lerp_ (y, 0.25); addcmul addcmul_ (y, y, 0.5); addcdiv addcdiv_ (y, y, 0.5); nan_to_num nan_to_num_ (0.0, 1.0, -1.0); clamp_min clamp_min_ (y); clamp_max clamp_max_ (0.5);
    clamp clamp_ (Some(-1.0), None); logical_and logical_and_ (y); logit logit_ (Some(0.1)); lgamma lgamma_ (); digamma digamma_ (); cumsum cumsum_ (1); cumprod cumprod_ (0); tril tril_ (0);
    triu triu_ (1); masked_fill masked_fill_ (&y.gt(0.0), 3.0); masked_scatter masked_scatter_ (&y.gt(0.0), y); index_put index_put_ (&y.slice(0, 0, 2, 1), 0, i);
    index_put_at index_put_at_ (&[Some(i)], &y.slice(0, 0, 2, 1), true); index_fill index_fill_ (0, i, 4.0); index_add index_add_ (0, i, &y.slice(0, 0, 2, 1));
    index_reduce index_reduce_ (0, i, &y.slice(0, 0, 2, 1), Meet::Amax, true); put put_ (i, &y.flatten().slice(0, 0, 2, 1), false);
    scatter scatter_ (1, &i.unsqueeze(1), 5.0); scatter_add scatter_add_ (1, &i.unsqueeze(1), y); scatter_reduce scatter_reduce_ (1, &i.unsqueeze(1), y, Meet::Prod, false);
    addmm addmm_ (&y.matmul(&y.t()), y, 0.5, 2.0); addr addr_ (&y.select(1, 0), &y.select(0, 0), 1.0, 2.0); uniform_like uniform_ (0.0, 2.0, 7); normal_like normal_ (1.0, 2.0, 7);
    exponential_like exponential_ (2.0, 7); randint_like random_ (0, 9, 7); dropout dropout_ (0.5, 7);
}

#[test]
fn writing_methods_write_what_the_others_return() {
    let other = || (numbers(&[3, 4], 1, 'f'), ints(&[2, 0]));
    for pair in PAIRS {
        let (y, i) = other();
        let want = (pair.new)(&numbers(&[3, 4], 0, 'f'), &y, &i).to(DType::F32);
        let want = want
            .to_bytes()
            .unwrap_or_else(|error| panic!("{}: {error}", pair.name));
        // Through a view of half of the memory: the rest stays.
        let eager = Tensor::full(&[3, 8], 42, DType::F32);
        let mut part = eager.slice(1, 0, 8, 2);
        part.copy_(&numbers(&[3, 4], 0, 'f')).unwrap();
        let write = pair.write;
        write(&mut part, &y, &i).unwrap_or_else(|error| panic!("{}: {error}", pair.name));
        assert_eq!(part.to_bytes().unwrap(), want, "{}", pair.name);
        assert_eq!(
            eager.slice(1, 1, 8, 2).to_vec::<f32>().unwrap(),
            [42.0; 12],
            "{}",
            pair.name
        );

        let f = compile(
            move |x: &Tensor, y: &Tensor, i: &Tensor| {
                let mut x = x.clone();
                write(&mut x, y, i).map(|()| &x + 1.0)
            },
            Options::default(),
        )
        .unwrap();
        let x = numbers(&[3, 4], 0, 'f');
        f.call(&[&x, &y, &i])
            .unwrap_or_else(|error| panic!("{}: {error}", pair.name));
        oxyfuel_engine::agree(DType::F32, &x.to_bytes().unwrap(), &want)
            .unwrap_or_else(|why| panic!("{}, compiled: {why}", pair.name));
    }
}

#[test]
fn assignments_write() {
    let assigned = |x: &Tensor, y: &Tensor| {
        let mut x = x.clone();
        x += y;
        x += 1.0;
        x *= y * 2.0;
        x -= 3;
        x /= 2.0;
        x %= 5.0;
        x
    };
    let written = |x: &Tensor, y: &Tensor| (((x + y + 1.0) * (y * 2.0) - 3) / 2.0) % 5.0;
    let (x, y) = (numbers(&[3, 4], 0, 'f'), numbers(&[4], 1, 'f'));
    let want = written(&x, &y).to_vec::<f32>().unwrap();
    let view = x.t();
    assert_eq!(assigned(&x, &y).to_vec::<f32>().unwrap(), want);
    assert_eq!(view.t().to_vec::<f32>().unwrap(), want);
    let f = compile(
        move |x: &Tensor, y: &Tensor| assigned(x, y),
        Options::default(),
    )
    .unwrap();
    let x = numbers(&[3, 4], 0, 'f');
    f.call(&[&x, &y]).unwrap();
    assert_eq!(x.to_vec::<f32>().unwrap(), want);

    let mut bits = ints(&[12, 10]);
    bits &= ints(&[6, 6]);
    bits |= 1;
    bits ^= 3;
    bits <<= 2;
    bits >>= 1;
    assert_eq!(
        bits.to_vec::<i64>().unwrap(),
        [(((12 & 6) | 1) ^ 3) << 1, (((10 & 6) | 1) ^ 3) << 1]
    );
}

#[test]
fn an_assignment_that_goes_wrong_leaves_a_failed_tensor() {
    let memory = numbers(&[3], 0, 'f');
    let before = memory.to_vec::<f32>().unwrap();
    let mut x = memory.clone();
    x += &numbers(&[2, 4], 1, 'f');
    let error = x.check().unwrap_err();
    assert_eq!(error.code, Code::ShapeMismatch);
    assert!(
        error.at.as_ref().unwrap().file.ends_with("writes.rs"),
        "{error}"
    );
    assert_eq!(memory.to_vec::<f32>().unwrap(), before);
    let mut whole = ints(&[1, 2]);
    whole /= 2;
    assert_eq!(whole.check().unwrap_err().code, Code::DTypeMismatch);
}

#[test]
fn kinds_that_do_not_fit_are_not_written() {
    let mut whole = ints(&[1, 2, 3]);
    let results = [
        whole.sqrt_(),
        whole.copysign_(1.5),
        whole.addcmul_(&numbers(&[3], 0, 'f'), 1, 1.0),
        whole.lerp_(&ints(&[4, 5, 6]), 0.5),
    ];
    for result in results {
        let error = result.unwrap_err();
        assert!(
            matches!(error.code, Code::DTypeMismatch | Code::UnsupportedDType),
            "{error}"
        );
    }
    assert_eq!(whole.to_vec::<i64>().unwrap(), [1, 2, 3]);
}
