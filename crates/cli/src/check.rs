//! Results checked before they are timed.

use oxyfuel_base::{Result, err};
use oxyfuel_engine::agree;
use oxyfuel_graph::HostTensor;
use oxyfuel_runtime::tensor::Tensor;

use crate::define::Workload;

/// What the interpreter says that a sample of each result must be.
#[derive(Debug)]
pub struct Expected<'a> {
    workload: &'a Workload,
    parts: Vec<HostTensor>,
}

impl<'a> Expected<'a> {
    pub fn of(workload: &'a Workload, inputs: &[HostTensor]) -> Result<Self> {
        let (graph, cut) = workload.sample(inputs)?;
        Ok(Self {
            workload,
            parts: oxyfuel_graph::run(&graph, &cut)?,
        })
    }

    /// An error unless every result agrees.
    pub fn check(&self, who: &str, results: &[Tensor]) -> Result<()> {
        for (number, (result, expected)) in results.iter().zip(&self.parts).enumerate() {
            let whole = HostTensor::new(result.dtype(), result.shape(), result.to_bytes()?)?;
            let part = self.workload.sample_of_output(number, &whole)?;
            let part = self.workload.comparable(number, &part)?;
            let expected = self.workload.comparable(number, expected)?;
            agree(part.dtype, &part.data, &expected.data).map_err(|why| {
                err!(
                    WrongResult,
                    "{} of {who}, output {number}: {why}",
                    self.workload.name
                )
            })?;
        }
        Ok(())
    }
}
