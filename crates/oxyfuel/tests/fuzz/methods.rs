//! Every method that makes tensors, by name: what it is called with is random.

use oxyfuel::nn::MultiHeadAttention;
use oxyfuel::{Convolution, DType, Device, Meet, Reduction, Result, Tensor, disable};

/// What a call may make something of.
pub struct Given<'a> {
    pub x: Tensor,
    pub y: &'a Tensor,
    pub z: &'a Tensor,
    pub ints: [i64; 4],
    pub dims: &'a [i64],
    pub float: f64,
    pub flag: bool,
    pub dtype: DType,
    pub text: &'a str,
}

impl Given<'_> {
    /// Dims that do not make a view of a billion elements: there a sum would take as long.
    fn small(&self) -> Vec<i64> {
        self.dims.iter().map(|&n| n.clamp(-9, 9)).collect()
    }

    fn how(&self) -> Convolution {
        let [a, b, c, d] = self.ints;
        Convolution {
            stride: vec![a],
            padding: vec![b; self.dims.len()],
            dilation: vec![c],
            groups: d,
        }
    }

    fn meet(&self) -> Meet {
        let all = Meet::ALL;
        all[self.ints[3].rem_euclid(all.len() as i64) as usize]
    }

    fn reduction(&self) -> Reduction {
        let all = [Reduction::None, Reduction::Mean, Reduction::Sum];
        all[self.ints[3].rem_euclid(3) as usize]
    }

    /// The tensor after what it says of itself was asked for; where it is a mistake, that mistake.
    fn read(self) -> Tensor {
        let x = &self.x;
        let known = (
            x.numel(),
            x.strides().len(),
            x.is_contiguous(),
            x.is_traced(),
        );
        let _ = (known, x.device(), x.dims::<2>().is_ok());
        // Elements of a traced tensor are for what has been cut off: asked for, and refused or not.
        let _ = (x.to_f64().is_ok(), x.data_ptr().is_ok());
        x.clone().try_ok().unwrap_or(self.x)
    }

    /// The tensor after it was written, or the mistake that the write was.
    fn written(mut self, write: impl FnOnce(&mut Tensor, &Self) -> Result<()>) -> Vec<Tensor> {
        let mut x = self.x.clone();
        match write(&mut x, &self) {
            Ok(()) => vec![x],
            Err(_) => {
                self.x = x;
                vec![self.x.reshape(&[-1, -1])]
            }
        }
    }
}

pub type Method = (&'static str, fn(Given<'_>) -> Vec<Tensor>);

/// Rows `name => what it does with (g)`, for methods that make one tensor.
macro_rules! methods {
    ($($name:literal => |$g:ident| $made:expr;)*) => {
        &[$(($name, |$g: Given<'_>| -> Vec<Tensor> { Made::list($made) }),)*]
    };
}

/// One tensor or several.
trait Made {
    fn list(self) -> Vec<Tensor>;
}

impl Made for Tensor {
    fn list(self) -> Vec<Tensor> {
        vec![self]
    }
}

impl Made for Vec<Tensor> {
    fn list(self) -> Vec<Tensor> {
        self
    }
}

impl Made for (Tensor, Tensor) {
    fn list(self) -> Vec<Tensor> {
        vec![self.0, self.1]
    }
}

impl Made for [Tensor; 3] {
    fn list(self) -> Vec<Tensor> {
        self.into()
    }
}

pub const METHODS: &[Method] = methods! {
    // Elements.
    "add" => |g| &g.x + g.y;
    "sub" => |g| &g.x - g.y;
    "div" => |g| g.x.div(g.y);
    "pow" => |g| g.x.pow(g.float);
    "remainder" => |g| g.x.remainder(g.y);
    "fmod" => |g| g.x.fmod(g.ints[0]);
    "div_floor" => |g| g.x.div_floor(g.ints[0]);
    "div_trunc" => |g| g.x.div_trunc(g.y);
    "maximum" => |g| g.x.maximum(g.float);
    "bitwise_left_shift" => |g| g.x.bitwise_left_shift(g.y);
    "bitwise_right_shift" => |g| g.x.bitwise_right_shift(g.ints[0]);
    "bitwise_xor" => |g| g.x.bitwise_xor(g.y);
    "eq" => |g| g.x.eq(g.y);
    "lt" => |g| g.x.lt(g.float);
    "logical_and" => |g| g.x.logical_and(g.y);
    "where" => |g| g.x.where_(g.y, g.float);
    "masked_fill" => |g| g.x.masked_fill(g.y, g.ints[0]);
    "clamp" => |g| g.x.clamp(Some(g.float), g.flag.then_some(1.0));
    "to" => |g| g.x.to(g.dtype);
    "contiguous" => |g| g.x.contiguous();
    "new_full" => |g| g.x.new_full(&g.small(), g.float, g.dtype);
    "full_like" => |g| g.x.full_like(g.ints[0]);
    "gelu" => |g| g.x.gelu();
    "neg" => |g| -&g.x;
    "rsqrt" => |g| g.x.rsqrt();
    "atan2" => |g| g.x.atan2(g.y);
    "gcd" => |g| g.x.gcd(g.y);
    // Special functions.
    "lgamma" => |g| g.x.lgamma();
    "digamma" => |g| g.x.digamma();
    "polygamma" => |g| g.x.polygamma(g.ints[0]);
    "zeta" => |g| g.x.zeta(g.y);
    "erfinv" => |g| g.x.erfinv();
    "erfcx" => |g| g.x.erfcx();
    "ndtri" => |g| g.x.ndtri();
    "log_ndtr" => |g| g.x.log_ndtr();
    "i0" => |g| g.x.i0();
    "i1e" => |g| g.x.i1e();
    "modified_bessel_k0" => |g| g.x.modified_bessel_k0();
    "bessel_j0" => |g| g.x.bessel_j0();
    "bessel_y1" => |g| g.x.bessel_y1();
    "spherical_bessel_j0" => |g| g.x.spherical_bessel_j0();
    "airy_ai" => |g| g.x.airy_ai();
    // Random numbers.
    "rand_like" => |g| g.x.rand_like(g.ints[0]);
    "rand_like of a tensor" => |g| g.x.rand_like(g.y);
    "uniform_like" => |g| g.x.uniform_like(g.float, g.float + 1.0, g.ints[0]);
    "randn_like" => |g| g.x.randn_like(g.ints[0]);
    "normal_like" => |g| g.x.normal_like(1.0, g.float, g.ints[0]);
    "exponential_like" => |g| g.x.exponential_like(g.float, g.ints[0]);
    "randint_like" => |g| g.x.randint_like(g.ints[0], g.ints[1], g.ints[2]);
    "bernoulli" => |g| g.x.bernoulli(g.ints[0]);
    "dropout" => |g| g.x.dropout(g.float, g.ints[0]);
    // Reductions and scans.
    "sum" => |g| g.x.sum(g.dims, g.flag);
    "mean" => |g| g.x.mean(g.dims, g.flag);
    "prod" => |g| g.x.prod(g.dims, g.flag);
    "amax" => |g| g.x.amax(g.dims, g.flag);
    "amin" => |g| g.x.amin(g.dims, g.flag);
    "any" => |g| g.x.any(g.dims, g.flag);
    "all" => |g| g.x.all(g.dims, g.flag);
    "var" => |g| g.x.var(g.dims, g.float, g.flag);
    "softmax" => |g| g.x.softmax(g.ints[0]);
    "log_softmax" => |g| g.x.log_softmax(g.ints[0]);
    "cumsum" => |g| g.x.cumsum(g.ints[0]);
    "cumprod" => |g| g.x.cumprod(g.ints[0]);
    "argmax" => |g| g.x.argmax(g.ints[0], g.flag);
    "argmin" => |g| g.x.argmin(g.ints[0], g.flag);
    "argsort" => |g| g.x.argsort(g.ints[0], g.flag);
    "sort" => |g| g.x.sort(g.ints[0], g.flag);
    "topk" => |g| g.x.topk(g.ints[1], g.ints[0], g.flag);
    "layer_norm" => |g| g.x.layer_norm(g.dims, g.flag.then_some(g.y), None, g.float);
    "rms_norm" => |g| g.x.rms_norm(g.dims, g.flag.then_some(g.y), g.float);
    // Views.
    "permute" => |g| g.x.permute(g.dims);
    "transpose" => |g| g.x.transpose(g.ints[0], g.ints[1]);
    "t" => |g| g.x.t();
    "reshape" => |g| g.x.reshape(g.dims);
    "flatten" => |g| g.x.flatten();
    "expand" => |g| g.x.expand(&g.small());
    "unsqueeze" => |g| g.x.unsqueeze(g.ints[0]);
    "squeeze" => |g| g.x.squeeze(g.ints[0]);
    "slice" => |g| g.x.slice(g.ints[0], g.ints[1], g.ints[2], g.ints[3]);
    "narrow" => |g| g.x.narrow(g.ints[0], g.ints[1], g.ints[2]);
    "select" => |g| g.x.select(g.ints[0], g.ints[1]);
    // Each part is a tensor: not a billion of them.
    "chunk" => |g| g.x.chunk(g.ints[1].min(9), g.ints[0]);
    "flatten_dims" => |g| g.x.flatten_dims(g.ints[0], g.ints[1]);
    "unflatten" => |g| g.x.unflatten(g.ints[0], g.dims);
    // Several tensors.
    "cat" => |g| Tensor::cat(&[&g.x, g.y], g.ints[0]);
    "stack" => |g| Tensor::stack(&[&g.x, g.y, &g.x], g.ints[0]);
    "gather" => |g| g.x.gather(g.ints[0], g.y);
    "index_select" => |g| g.x.index_select(g.ints[0], g.y);
    "embedding" => |g| Tensor::embedding(g.y, &g.x);
    "index_put" => |g| g.x.index_put(g.y, g.ints[0], g.z);
    "slice_scatter" => |g| g.x.slice_scatter(g.y, g.ints[0], g.ints[1], g.ints[2], g.ints[3]);
    "copy" => |g| g.x.copy(g.y);
    "scatter" => |g| g.x.scatter(g.ints[0], g.y, g.z);
    "scatter of a number" => |g| g.x.scatter(g.ints[0], g.y, g.float);
    "scatter_add" => |g| g.x.scatter_add(g.ints[0], g.y, g.z);
    "scatter_reduce" => |g| g.x.scatter_reduce(g.ints[0], g.y, g.z, g.meet(), g.flag);
    "index_add" => |g| g.x.index_add(g.ints[0], g.y, g.z);
    "index_reduce" => |g| g.x.index_reduce(g.ints[0], g.y, g.z, g.meet(), g.flag);
    // Products.
    "matmul" => |g| g.x.matmul(g.y);
    "addmm" => |g| g.x.addmm(g.y, g.z, g.float, 1.0);
    "linear" => |g| g.x.linear(g.y, g.flag.then_some(g.z));
    "mv" => |g| g.x.mv(g.y);
    "dot" => |g| g.x.dot(g.y);
    "outer" => |g| g.x.outer(g.y);
    "baddbmm" => |g| g.x.baddbmm(g.y, g.z, g.float, 1.0);
    "addbmm" => |g| g.x.addbmm(g.y, g.z, 1.0, g.float);
    "addmv" => |g| g.x.addmv(g.y, g.z, g.float, 1.0);
    "addr" => |g| g.x.addr(g.y, g.z, g.float, 1.0);
    "einsum" => |g| Tensor::einsum(g.text, &[&g.x, g.y]);
    "einsum of one" => |g| Tensor::einsum(g.text, &[&g.x]);
    "attention" => |g| g.x.scaled_dot_product_attention(g.y, g.z, None, g.flag, Some(g.float));
    "attention with a mask" => |g| g.x.scaled_dot_product_attention(g.y, g.y, Some(g.z), g.flag, None);
    // Windows.
    "max_pool2d" => |g| g.x.max_pool2d([2, g.ints[0]], [1, g.ints[1]], [0, g.ints[2]], [1, g.ints[3]]);
    "max_pool2d_positions" => |g| g.x.max_pool2d_positions([g.ints[0], 1], [g.ints[1], 1], [g.ints[2], 0], [g.ints[3], 1]);
    "avg_pool2d" => |g| g.x.avg_pool2d([g.ints[0], 2], [1, g.ints[1]], [g.ints[2], g.ints[3]]);
    "conv1d" => |g| g.x.conv1d(g.y, g.flag.then_some(g.z), &g.how());
    "conv2d" => |g| g.x.conv2d(g.y, g.flag.then_some(g.z), &g.how());
    "conv3d" => |g| g.x.conv3d(g.y, g.flag.then_some(g.z), &g.how());
    "conv_transpose1d" => |g| g.x.conv_transpose1d(g.y, g.flag.then_some(g.z), &g.how(), g.dims);
    "conv_transpose2d" => |g| g.x.conv_transpose2d(g.y, g.flag.then_some(g.z), &g.how(), g.dims);
    "conv_backward" => |g| g.x.conv_backward(g.y, g.z, &g.how());
    // Writes.
    "add_" => |g| g.written(|x, g| x.add_(g.y));
    "copy_" => |g| g.written(|x, g| x.copy_(g.y));
    "slice_assign" => |g| g.written(|x, g| x.slice_assign(g.ints[0], g.ints[1], g.ints[2], g.ints[3], g.float));
    "select_assign" => |g| g.written(|x, g| x.select_assign(g.ints[0], g.ints[1], g.y));
    "masked_fill_" => |g| g.written(|x, g| x.masked_fill_(g.y, g.float));
    "fill_" => |g| g.written(|x, g| x.fill_(g.float));
    "zero_" => |g| g.written(|x, _| x.zero_());
    // More statistics.
    "aminmax" => |g| g.x.aminmax(g.dims, g.flag);
    "std_mean" => |g| g.x.std_mean(g.dims, g.float, g.flag);
    "nansum" => |g| g.x.nansum(g.dims, g.flag);
    "nanmean" => |g| g.x.nanmean(g.dims, g.flag);
    "count_nonzero" => |g| g.x.count_nonzero(g.dims);
    "isclose" => |g| g.x.isclose(g.y, g.float, 1e-3, g.flag);
    "ndtr" => |g| g.x.ndtr();
    "softmin" => |g| g.x.softmin(g.ints[0]);
    "instance_norm" => |g| g.x.instance_norm(g.flag.then_some(g.y), Some(g.z), g.float);
    "batch_norm_backward" => |g| g.x.batch_norm_backward(g.y, g.flag.then_some(g.z), g.float);
    // More functions of elements.
    "deg2rad" => |g| g.x.deg2rad();
    "rad2deg" => |g| g.x.rad2deg();
    "sinc" => |g| g.x.sinc();
    "selu" => |g| g.x.selu();
    "softsign" => |g| g.x.softsign();
    "tanhshrink" => |g| g.x.tanhshrink();
    "hardshrink" => |g| g.x.hardshrink(g.float);
    "softshrink" => |g| g.x.softshrink(g.float);
    "heaviside" => |g| g.x.heaviside(g.y);
    "xlog1py" => |g| g.x.xlog1py(g.y);
    // More windows.
    "max_pool1d" => |g| g.x.max_pool1d([g.ints[0]], [g.ints[1]], [g.ints[2]], [g.ints[3]]);
    "max_pool1d_positions" => |g| g.x.max_pool1d_positions([2], [g.ints[1]], [g.ints[2]], [1]);
    "max_pool3d" => |g| g.x.max_pool3d([1, 2, g.ints[0]], [1; 3], [0, g.ints[1], 0], [1; 3]);
    "max_pool3d_positions" => |g| g.x.max_pool3d_positions([1, 2, g.ints[0]], [g.ints[1], 1, 1], [0; 3], [1; 3]);
    "adaptive_avg_pool1d" => |g| g.x.adaptive_avg_pool1d([g.ints[0].min(9)]);
    "conv_transpose3d" => |g| g.x.conv_transpose3d(g.y, g.flag.then_some(g.z), &g.how(), g.dims);
    // Numbers drawn in place.
    "uniform_" => |g| g.written(|x, g| x.uniform_(g.float, 2.0, g.ints[0]));
    "normal_" => |g| g.written(|x, g| x.normal_(g.float, 1.0, g.ints[0]));
    "exponential_" => |g| g.written(|x, g| x.exponential_(g.float, g.ints[0]));
    "random_" => |g| g.written(|x, g| x.random_(g.ints[0], g.ints[1], g.ints[2]));
    // Sizes that the data says.
    "masked_select" => |g| g.x.masked_select(g.y);
    "nonzero" => |g| g.x.nonzero();
    "unique" => |g| g.x.unique();
    // Losses.
    "mse_loss" => |g| g.x.mse_loss(g.y, g.reduction());
    "l1_loss" => |g| g.x.l1_loss(g.y, g.reduction());
    "smooth_l1_loss" => |g| g.x.smooth_l1_loss(g.y, g.float, g.reduction());
    "huber_loss" => |g| g.x.huber_loss(g.y, g.float, g.reduction());
    "binary_cross_entropy" => |g| g.x.binary_cross_entropy(g.y, g.flag.then_some(g.z), g.reduction());
    "binary_cross_entropy_with_logits" => |g| g.x.binary_cross_entropy_with_logits(g.y, g.flag.then_some(g.z), Some(g.y), g.reduction());
    "kl_div" => |g| g.x.kl_div(g.y, g.flag, g.reduction());
    "pairwise_distance" => |g| g.x.pairwise_distance(g.y, g.float, 1e-6);
    // Where tensors are, and what they say of themselves.
    "view" => |g| g.x.view(g.dims);
    "to_device" => |g| g.x.to_device(Device::cpu());
    "reads" => |g| g.read();
    // Whatever is computed apart.
    "disable" => |g| disable(&g.x, |x| x.relu()).unwrap_or_else(|_| g.x.reshape(&[-1, -1]));
    "attend" => |g| MultiHeadAttention::new(g.ints[0], g.ints[1], g.dtype, 0).attend(&g.x, g.y, g.z, g.flag.then_some(g.y));
};
