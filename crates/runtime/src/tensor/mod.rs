//! Tensors: typed, strided windows on storages.
//!
//! A tensor's layout is checked against its storage whenever one is made, so no safe code can reach outside of the
//! memory. Views share the storage; a write through one is seen by all. Everything here is bookkeeping and plain
//! copies: computing is the business of kernels.

pub mod dims;
pub mod element;
pub mod layout;

mod copy;

use crate::capture::tape;
use crate::device::{Device, DeviceId, Stream};
use crate::memory::HostAllocator;
use crate::storage::Storage;
use element::Element;
use layout::{Layout, byte_count};
use oxyfuel_base::{DType, Result, ensure};
use std::sync::Arc;

/// A typed, strided window on a storage.
#[derive(Clone, Debug)]
pub struct Tensor {
    storage: Storage,
    dtype: DType,
    layout: Layout,
}

impl Tensor {
    /// A window on `storage`; every element of it must lie inside.
    pub fn from_storage(storage: Storage, dtype: DType, layout: Layout) -> Result<Self> {
        layout.check(storage.len() / dtype.size())?;
        Ok(Self {
            storage,
            dtype,
            layout,
        })
    }

    /// A dense tensor of host memory with arbitrary contents.
    pub fn empty(memory: &HostAllocator, dtype: DType, shape: &[i64]) -> Result<Self> {
        let storage = Storage::host(memory, byte_count(shape, dtype.size())?)?;
        Self::from_storage(storage, dtype, Layout::contiguous(shape))
    }

    /// A dense tensor of a device's memory with arbitrary contents.
    pub fn empty_on(device: &dyn Device, dtype: DType, shape: &[i64]) -> Result<Self> {
        let storage = device.allocate(byte_count(shape, dtype.size())?)?;
        Self::from_storage(storage, dtype, Layout::contiguous(shape))
    }

    /// A dense tensor of host memory, all zero.
    pub fn zeros(memory: &HostAllocator, dtype: DType, shape: &[i64]) -> Result<Self> {
        let tensor = Self::empty(memory, dtype, shape)?;
        tensor.storage.borrow_mut()?.bytes()?.fill(0);
        Ok(tensor)
    }

    /// A dense tensor with these elements in row-major order.
    pub fn from_slice<T: Element>(
        memory: &HostAllocator,
        elements: &[T],
        shape: &[i64],
    ) -> Result<Self> {
        let tensor = Self::empty(memory, T::DTYPE, shape)?;
        ensure!(
            layout::element_count(shape)? == elements.len() as i64,
            ShapeMismatch,
            "{} elements do not fill shape {shape:?}",
            elements.len()
        );
        for (bytes, element) in tensor
            .storage
            .borrow_mut()?
            .bytes()?
            .chunks_exact_mut(T::DTYPE.size())
            .zip(elements)
        {
            element.write(bytes);
        }
        Ok(tensor)
    }

    /// A dense tensor with these bytes.
    pub fn from_bytes(
        memory: &HostAllocator,
        bytes: &[u8],
        dtype: DType,
        shape: &[i64],
    ) -> Result<Self> {
        let tensor = Self::empty(memory, dtype, shape)?;
        ensure!(
            tensor.storage.len() == bytes.len(),
            ShapeMismatch,
            "{} bytes do not fill shape {shape:?} of {dtype}",
            bytes.len()
        );
        tensor.storage.borrow_mut()?.bytes()?.copy_from_slice(bytes);
        Ok(tensor)
    }

    /// The elements in row-major order.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        ensure!(
            self.dtype == T::DTYPE,
            DTypeMismatch,
            "a tensor of {} read as {}",
            self.dtype,
            T::DTYPE
        );
        Ok(self
            .to_bytes()?
            .chunks_exact(self.dtype.size())
            .map(T::read)
            .collect())
    }

    /// The bytes of the elements in row-major order.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let size = self.dtype.size();
        let mut out = vec![0; byte_count(&self.layout.shape, size)?];
        let reading = self.storage.borrow()?;
        let Some(device) = self.storage.device() else {
            copy::copy(
                &mut out,
                &Layout::contiguous(&self.layout.shape),
                reading.bytes()?,
                &self.layout,
                size,
            );
            return Ok(out);
        };
        if self.layout.is_contiguous() {
            device.copy_out(&self.storage, self.layout.offset as usize * size, &mut out)?;
            return Ok(out);
        }
        // A strided tensor of a device comes over whole and is unpicked here.
        let mut whole = vec![0; self.storage.len()];
        device.copy_out(&self.storage, 0, &mut whole)?;
        copy::copy(
            &mut out,
            &Layout::contiguous(&self.layout.shape),
            &whole,
            &self.layout,
            size,
        );
        Ok(out)
    }

    /// The element type.
    #[inline]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The extent of each dim.
    #[inline]
    pub fn shape(&self) -> &[i64] {
        &self.layout.shape
    }

    /// The distance between neighbours of each dim, in elements.
    #[inline]
    pub fn strides(&self) -> &[i64] {
        &self.layout.strides
    }

    /// The position of the first element in the storage, in elements.
    #[inline]
    pub fn offset(&self) -> i64 {
        self.layout.offset
    }

    /// Shape, strides and offset together.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The memory behind.
    #[inline]
    pub fn storage(&self) -> &Storage {
        &self.storage
    }

    /// Where the memory is.
    #[inline]
    pub fn device(&self) -> DeviceId {
        self.storage.device_id()
    }

    /// The address of the first element on its device.
    #[inline]
    pub fn address(&self) -> u64 {
        self.storage.address() + self.layout.offset as u64 * self.dtype.size() as u64
    }

    /// The number of dims.
    #[inline]
    pub fn rank(&self) -> usize {
        self.layout.rank()
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        // Of a shape with a 0 the other extents may be of any size; without one the layout was checked.
        if self.layout.shape.contains(&0) {
            return 0;
        }
        self.layout.shape.iter().product::<i64>() as usize
    }

    /// Whether there is no element.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.layout.shape.contains(&0)
    }

    /// Whether the elements are dense and in row-major order.
    pub fn is_contiguous(&self) -> bool {
        self.layout.is_contiguous()
    }

    fn view(&self, layout: Layout) -> Result<Self> {
        Self::from_storage(self.storage.clone(), self.dtype, layout)
    }

    /// A view with the dims in another order.
    pub fn permute(&self, order: &[usize]) -> Result<Self> {
        self.view(self.layout.permute(order)?)
    }

    /// A view of `begin..end` of one dim in steps of `step`.
    pub fn slice(&self, dim: usize, begin: i64, end: i64, step: i64) -> Result<Self> {
        self.view(self.layout.slice(dim, begin, end, step)?)
    }

    /// A view that repeats dims of extent 1, and new dims in front.
    pub fn expand(&self, shape: &[i64]) -> Result<Self> {
        self.view(self.layout.expand(shape)?)
    }

    /// A view of the same elements in the same order with another shape; an error where only a copy could have it.
    pub fn reshape(&self, shape: &[i64]) -> Result<Self> {
        self.view(self.layout.reshape(shape)?)
    }

    /// This tensor if it is dense and row-major, else a copy that is.
    pub fn contiguous(&self, memory: &HostAllocator) -> Result<Self> {
        if self.is_contiguous() {
            return Ok(self.clone());
        }
        let host = Self::from_bytes(memory, &self.to_bytes()?, self.dtype, self.shape())?;
        match self.storage.device() {
            Some(device) => host.to_device(device),
            None => Ok(host),
        }
    }

    /// Overwrites the elements with those of `from`, which has the same shape and type, wherever it lives.
    /// Views of one storage may overlap: `from` counts as it was before.
    pub fn copy_from(&mut self, from: &Tensor) -> Result<()> {
        ensure!(
            self.shape() == from.shape(),
            ShapeMismatch,
            "shape {:?} is not shape {:?}",
            from.shape(),
            self.shape()
        );
        ensure!(
            self.dtype == from.dtype,
            DTypeMismatch,
            "{} is not {}",
            from.dtype,
            self.dtype
        );
        let size = self.dtype.size();
        if from.device() == DeviceId::CPU
            && self.device() == DeviceId::CPU
            && !self.storage.is_same(&from.storage)
        {
            let (mut to, from_bytes) = (self.storage.borrow_mut()?, from.storage.borrow()?);
            copy::copy(
                to.bytes()?,
                &self.layout,
                from_bytes.bytes()?,
                &from.layout,
                size,
            );
            return Ok(());
        }
        if self.copy_on_device(from)? {
            return Ok(());
        }
        let bytes = from.to_bytes()?;
        let dense = Layout::contiguous(self.shape());
        let mut to = self.storage.borrow_mut()?;
        match self.storage.device() {
            None => copy::copy(to.bytes()?, &self.layout, &bytes, &dense, size),
            Some(device) if self.is_contiguous() => {
                device.copy_in(&bytes, &self.storage, self.layout.offset as usize * size)?;
            }
            Some(device) => {
                let mut whole = vec![0; self.storage.len()];
                device.copy_out(&self.storage, 0, &mut whole)?;
                copy::copy(&mut whole, &self.layout, &bytes, &dense, size);
                device.copy_in(&whole, &self.storage, 0)?;
            }
        }
        Ok(())
    }

    /// Copies inside of a device, in the order of its work; `false` where that takes more than moving bytes.
    fn copy_on_device(&self, from: &Tensor) -> Result<bool> {
        let Some(device) = self.storage.device() else {
            return Ok(false);
        };
        let dense = self.is_contiguous() && from.is_contiguous();
        if from.device() != device.id() || !dense || self.storage.is_same(&from.storage) {
            return Ok(false);
        }
        let (_to, _from) = (self.storage.borrow_mut()?, from.storage.borrow()?);
        tape::used(device.id(), &self.storage, true);
        tape::used(device.id(), &from.storage, false);
        let bytes = self.len() * self.dtype.size();
        if bytes > 0 {
            // SAFETY: both are dense windows of that many bytes on different memory of the device, which gives memory that is
            // let go to work that comes later in its order.
            unsafe { device.move_bytes(from.address(), self.address(), bytes, Stream::default()) }?;
        }
        Ok(true)
    }

    /// A dense copy in the memory of `device`, or this tensor itself where it lives there already.
    pub fn to_device(&self, device: &Arc<dyn Device>) -> Result<Self> {
        if self.device() == device.id() {
            return Ok(self.clone());
        }
        let mut there = Self::empty_on(&**device, self.dtype, self.shape())?;
        there.copy_from(self)?;
        Ok(there)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::{bf16, f16};
    use oxyfuel_base::Code;
    use proptest::prelude::*;

    fn memory() -> HostAllocator {
        HostAllocator::default()
    }

    fn iota(shape: &[i64]) -> Tensor {
        let count = layout::element_count(shape).unwrap();
        Tensor::from_slice(&memory(), &(0..count as i32).collect::<Vec<_>>(), shape).unwrap()
    }

    #[test]
    fn every_element_type_round_trips() {
        fn check<T: Element + PartialEq>(values: &[T]) {
            let tensor = Tensor::from_slice(&memory(), values, &[values.len() as i64]).unwrap();
            assert_eq!(tensor.dtype(), T::DTYPE);
            assert_eq!(tensor.to_vec::<T>().unwrap(), values);
        }
        check(&[1.5f32, -0.0, f32::MAX]);
        check(&[1.5f64, f64::MIN]);
        check(&[f16::from_f32(1.5)]);
        check(&[bf16::from_f32(-3.0)]);
        check(&[i8::MIN, 0, 1]);
        check(&[i16::MIN, 1]);
        check(&[i32::MIN, 1]);
        check(&[i64::MIN, 1]);
        check(&[u8::MAX, 1]);
        check(&[u16::MAX]);
        check(&[u32::MAX]);
        check(&[u64::MAX]);
        check(&[true, false]);
        check::<f32>(&[]);
    }

    #[test]
    fn views_read_what_they_show() {
        let t = iota(&[2, 3]);
        assert_eq!(
            t.permute(&[1, 0]).unwrap().to_vec::<i32>().unwrap(),
            [0, 3, 1, 4, 2, 5]
        );
        assert_eq!(
            t.slice(1, 0, 3, 2).unwrap().to_vec::<i32>().unwrap(),
            [0, 2, 3, 5]
        );
        assert_eq!(t.expand(&[4, 3]).unwrap_err().code, Code::ShapeMismatch);
        assert_eq!(
            t.slice(0, 1, 2, 1)
                .unwrap()
                .expand(&[2, 3])
                .unwrap()
                .to_vec::<i32>()
                .unwrap(),
            [3, 4, 5, 3, 4, 5]
        );
        assert_eq!(
            t.reshape(&[3, 2]).unwrap().to_vec::<i32>().unwrap(),
            [0, 1, 2, 3, 4, 5]
        );
        let c = t.permute(&[1, 0]).unwrap().contiguous(&memory()).unwrap();
        assert!(c.is_contiguous());
        assert_eq!(
            c.reshape(&[6]).unwrap().to_vec::<i32>().unwrap(),
            [0, 3, 1, 4, 2, 5]
        );
    }

    #[test]
    fn writes_go_through_views_and_overlap_is_defined() {
        let t = iota(&[4]);
        let mut tail = t.slice(0, 1, 4, 1).unwrap();
        tail.copy_from(&t.slice(0, 0, 3, 1).unwrap()).unwrap();
        assert_eq!(t.to_vec::<i32>().unwrap(), [0, 0, 1, 2]);
        let mut odd = t.slice(0, 1, 4, 2).unwrap();
        odd.copy_from(&iota(&[2])).unwrap();
        assert_eq!(t.to_vec::<i32>().unwrap(), [0, 0, 1, 1]);
    }

    #[test]
    fn mistakes_are_coded() {
        let t = iota(&[2, 3]);
        assert_eq!(t.to_vec::<f32>().unwrap_err().code, Code::DTypeMismatch);
        assert_eq!(
            t.clone().copy_from(&iota(&[3, 2])).unwrap_err().code,
            Code::ShapeMismatch
        );
        assert_eq!(
            Tensor::from_slice(&memory(), &[1f32], &[2])
                .unwrap_err()
                .code,
            Code::ShapeMismatch
        );
        assert_eq!(
            Tensor::empty(&memory(), DType::F32, &[1 << 62])
                .unwrap_err()
                .code,
            Code::SizeOverflow
        );
        assert_eq!(
            Tensor::empty(&memory(), DType::F32, &[1 << 50])
                .unwrap_err()
                .code,
            Code::OutOfMemory
        );
        let outside = Layout {
            shape: [7].as_slice().into(),
            strides: [1].as_slice().into(),
            offset: 0,
        };
        assert_eq!(
            Tensor::from_storage(t.storage().clone(), DType::I32, outside)
                .unwrap_err()
                .code,
            Code::IndexOutOfRange
        );
    }

    proptest! {
        /// The copy of any view of any view equals picking element by element.
        #[test]
        fn copies_agree_with_the_naive_walk(
            shape in proptest::collection::vec(1i64..5, 1..5),
            order in any::<u64>(), dim in 0usize..4, begin in 0i64..4, step in 1i64..3,
        ) {
            let whole = iota(&shape);
            let mut dims: Vec<usize> = (0..shape.len()).collect();
            dims.sort_by_key(|d| order.rotate_left(*d as u32 * 7) % 97);
            let dim = dim % shape.len();
            let view = whole.slice(dim, begin.min(shape[dim] - 1), shape[dim], step).unwrap().permute(&dims).unwrap();
            let mut naive = vec![view.offset()];
            for (extent, stride) in view.shape().iter().zip(view.strides()) {
                naive = naive.iter().flat_map(|at| (0..*extent).map(move |i| at + i * stride)).collect();
            }
            let naive: Vec<i32> = naive.into_iter().map(|at| at as i32).collect();
            prop_assert_eq!(&view.to_vec::<i32>().unwrap(), &naive);
            // And into a strided destination.
            let mut order = dims.clone();
            order.reverse();
            let spread: Vec<i64> = (0..view.rank()).map(|d| view.shape()[order[d]] * 2).collect();
            let target = Tensor::zeros(&memory(), DType::I32, &spread).unwrap();
            let mut back = vec![0; order.len()];
            for (at, d) in order.iter().enumerate() { back[*d] = at; }
            let mut window = target.permute(&back).unwrap();
            for d in 0..window.rank() { window = window.slice(d, 0, view.shape()[d] * 2, 2).unwrap(); }
            window.copy_from(&view).unwrap();
            prop_assert_eq!(&window.to_vec::<i32>().unwrap(), &naive);
        }
    }
}
