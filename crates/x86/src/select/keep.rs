//! Tile values in scratch: between the stages of a nest, and between nests.

use oxyfuel_base::{Result, err};
use oxyfuel_kernel::ir::{Index, Val};

use super::eval::raw;
use super::nest::{Ctx, Window};
use super::run::{Key, Sink};
use super::{Def, Select, slot};
use crate::emit::lane_bytes;
use crate::mir::Reg;

impl<'p> Select<'p, '_> {
    /// Where a value stays between stages.
    pub fn scratch_window(&mut self, c: &Ctx<'_, 'p>, v: Val) -> Result<Window> {
        let size = i64::from(lane_bytes(self.dtype(v)?));
        let mut axes: Vec<usize> = c
            .nest
            .staged
            .iter()
            .copied()
            .filter(|a| Some(*a) != c.nest.vector)
            .collect();
        let staged_vector = c.nest.vector.filter(|a| c.nest.staged.contains(a));
        axes.extend(staged_vector);
        let mut stride = if staged_vector.is_some() {
            1
        } else {
            super::nest::MAX_UNROLL * i64::from(c.nest.lanes)
        };
        let mut dims = Vec::new();
        for a in axes.into_iter().rev() {
            dims.push((Some(a), Index::Const(stride)));
            stride *= c.axes.extent[a];
        }
        let offset = c.scratch.get(&v).copied().unwrap_or(0);
        Ok(Window {
            key: Key::Scratch(slot(v)),
            memory: self.scratch,
            base: Index::Const(i64::from(offset) / size),
            size,
            dims,
            ahead: 0,
        })
    }

    pub fn save(&mut self, c: &mut Ctx<'_, 'p>, v: Val, r: Reg, copy: u32) -> Result<()> {
        let dtype = raw(self.dtype(v)?);
        let w = self.scratch_window(c, v)?;
        let (mem, _) = self.place(c, &w, copy)?;
        self.e.store(dtype, mem, r, c.nest.lanes, None, false)
    }

    pub fn saved_window(
        &mut self,
        c: &Ctx<'_, 'p>,
        v: Val,
        offset: u32,
        strides: &[i64],
    ) -> Result<Window> {
        let dtype = self.dtype(v)?;
        let size = raw(dtype).size() as i64;
        let key = Key::Val(slot(v));
        let dims = strides
            .iter()
            .enumerate()
            .map(|(d, s)| (c.axes.of(key, d), Index::Const(*s)))
            .collect();
        Ok(Window {
            key: Key::Kept(slot(v)),
            memory: self.scratch,
            base: Index::Const(i64::from(offset) / size),
            size,
            dims,
            ahead: 0,
        })
    }

    /// Strides of a kept tile: row-major, but for the vector axis, which is contiguous.
    fn kept_strides(&self, c: &Ctx<'_, 'p>, v: Val) -> Result<Vec<i64>> {
        let shape = &self.tile_of(v)?.shape;
        if let Some(strides) = self.forced_strides.get(&v) {
            return Ok(strides.clone());
        }
        let key = Key::Val(slot(v));
        let vector = (0..shape.len())
            .find(|&d| c.axes.of(key, d).is_some() && c.axes.of(key, d) == c.nest.vector);
        let mut strides = vec![0; shape.len()];
        let mut stride = 1;
        if let Some(d) = vector {
            strides[d] = 1;
            stride = shape[d];
        }
        for d in (0..shape.len()).rev() {
            if Some(d) != vector {
                strides[d] = stride;
                stride *= shape[d];
            }
        }
        Ok(strides)
    }

    pub fn keep_element(&mut self, c: &mut Ctx<'_, 'p>, v: Val, copy: u32) -> Result<()> {
        let r = self.eval(c, v, copy)?;
        let shape = &self.tile_of(v)?.shape;
        if shape.iter().all(|n| *n == 1) {
            if let Some(&to) = self.kept_registers.get(&v) {
                self.e.f.copy(self.e.level.width(), to, r);
            } else {
                self.kept_registers.insert(v, r);
            }
            return Ok(());
        }
        let dtype = self.dtype(v)?;
        let strides = self.kept_strides(c, v)?;
        let offset = match self.kept_scratch.get(&v) {
            Some(&o) => o,
            None => {
                let len: i64 = strides
                    .iter()
                    .zip(shape)
                    .map(|(s, n)| s * n)
                    .max()
                    .unwrap_or(1);
                let bytes = u32::try_from((len + 15) / 16 * 16 * raw(dtype).size() as i64)
                    .map_err(|_| err!(TooLarge, "a tile of {len} elements in scratch"))?;
                let o = self.take_scratch(bytes)?;
                self.kept_scratch.insert(v, o);
                o
            }
        };
        self.kept_strides.insert(v, strides.clone());
        let w = self.saved_window(c, v, offset, &strides)?;
        if w.dims.iter().any(|d| d.0.is_some() && d.0 == c.nest.vector) {
            let (mem, stride) = self.place(c, &w, copy)?;
            let (dtype, lanes) = (raw(dtype), c.nest.lanes);
            if stride == Index::Const(1) {
                return self.e.store(dtype, mem, r, lanes, c.tail, false);
            }
            // Another nest laid the tile out, along another axis.
            return self.store_across(dtype, mem, r, lanes, stride, c.tail);
        }
        self.store_one(c, &w, raw(dtype), r, None)
    }

    /// Values kept by a nest are found where it left them.
    pub fn keep(&mut self, c: &mut Ctx<'_, 'p>) -> Result<()> {
        for sink in &c.nest.sinks {
            let Sink::Keep(v) = sink else { continue };
            if let Some(r) = self.kept_registers.remove(v) {
                self.defs.insert(*v, Def::Uniform(r));
            } else if let (Some(offset), Some(strides)) = (
                self.kept_scratch.get(v).copied(),
                self.kept_strides.remove(v),
            ) {
                self.defs.insert(*v, Def::Saved { offset, strides });
            }
        }
        Ok(())
    }
}
