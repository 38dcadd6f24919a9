//! One model over several devices: each has contiguous layers, the first one the embedding too, the last one the head. The host copies what a
//! device needs of another one's results, which is the residual stream where the layers of the next device begin.
//!
//! A verb runs on the device that has its weights or its cache; one without either runs where its inputs are. Each buffer exists on all devices
//! and knows which of them have its newest content (`buffers`), so a plan need not know of the devices. A step is cut into segments, one for each
//! time that another device goes on (`steps`); it is replayed segment by segment.

mod buffers;
mod cache;
mod inspect;
mod segments;
mod state;
mod steps;
mod verbs;

use std::collections::VecDeque;
use std::sync::Arc;

use octet_compute::Error;
use octet_compute::backend::Stage;

use crate::backend::{self, Vulkan, VulkanOptions};
use crate::memory::{Buffer, Place};
use buffers::Exchange;
pub use buffers::{Buf, Weight};
pub use cache::Cache;
use segments::Recording;
use steps::Recorded;

/// Maximum number of devices of a model.
pub const DEVICES_MAX: usize = 8;

/// A device of a model, and how many layers it has.
#[derive(Debug, Clone)]
pub struct Share {
    /// How it is opened. Its experts are all in its memory.
    pub device: VulkanOptions,
    /// Number of layers, at least 1. The last device also has those that no device is named for.
    pub layers: usize,
}

/// Several devices with the weights and caches of one model.
pub struct Split {
    devices: Vec<Vulkan>,
    /// The number of the layer after each device's last one.
    ends: Vec<usize>,
    /// The device of what is loaded now.
    loading: usize,
    /// The device of each cache, as far as the loader named them.
    caches: Vec<Option<usize>>,
    /// The device of the last verb.
    at: usize,
    /// The step that is being recorded.
    recording: Option<Recording>,
    /// Memory of each device that the host copies through.
    exchange: Vec<Exchange>,
    /// Recorded steps, the least recently used one first.
    steps: VecDeque<Recorded>,
    /// The first failure of a copy between devices since the last step.
    fault: Option<Error>,
    /// Barriers and kernels of the last step, on all devices.
    last_step: (u32, u32),
}

impl Split {
    /// Opens the devices, in the order of their layers. One may be listed several times: each opening has its own memory.
    ///
    /// # Errors
    /// If there are none or too many, one has no layers or only slots for experts, or cannot be opened.
    pub fn new(shares: &[Share]) -> Result<Self, Error> {
        if shares.is_empty() || shares.len() > DEVICES_MAX {
            let count = shares.len();
            return Err(Error(format!("a model runs on 1 to {DEVICES_MAX} devices, and {count} are listed")));
        }
        let (mut devices, mut ends, mut end) = (Vec::new(), Vec::new(), 0);
        for share in shares {
            let index = share.device.index;
            if share.layers == 0 {
                return Err(Error(format!("vulkan:{index} has no layers: each device needs one at least")));
            }
            if share.device.expert_slots.is_some() {
                return Err(Error("experts in slots need one device".into()));
            }
            end += share.layers;
            ends.push(end);
            devices.push(Vulkan::new(&share.device)?);
        }
        let mut exchange = Vec::new();
        for be in &devices {
            let buffer = || be.memory.buffer(0, Place::Host);
            exchange.push(Exchange { buffers: [buffer()?, buffer()?], used: [0; 2] });
        }
        let last = devices.len() - 1;
        for (i, be) in devices.iter_mut().enumerate() {
            let first = if i == 0 { 0 } else { ends[i - 1] };
            be.own_layers = first..if i == last { usize::MAX } else { ends[i] };
        }
        Ok(Self {
            devices,
            ends,
            loading: 0,
            caches: Vec::new(),
            at: 0,
            recording: None,
            exchange,
            steps: VecDeque::new(),
            fault: None,
            last_step: (0, 0),
        })
    }

    /// The device of a layer.
    fn of_layer(&self, layer: usize) -> usize {
        self.ends.iter().position(|end| layer < *end).unwrap_or(self.last())
    }

    /// The device of the cache with this index.
    fn of_cache(&self, index: usize) -> usize {
        self.caches.get(index).copied().flatten().unwrap_or_else(|| self.of_layer(index))
    }

    /// The device of a part of the model.
    fn of_stage(&self, stage: Stage) -> usize {
        match stage {
            Stage::Embedding => 0,
            Stage::Layer(layer) => self.of_layer(layer),
            Stage::Head => self.last(),
        }
    }

    fn last(&self) -> usize {
        self.devices.len() - 1
    }

    /// An error of a device, with its name.
    fn named(&self, device: usize, e: &Error) -> Error {
        let count = self.devices.len();
        Error(format!("{}, device {} of {count}: {e}", self.devices[device].describe(), device + 1))
    }

    /// Calls `f` with each device until one fails.
    fn each<T>(
        &mut self,
        mut f: impl FnMut(usize, &mut Vulkan) -> Result<T, Error>,
    ) -> Result<Vec<T>, Error> {
        let mut all = Vec::with_capacity(self.devices.len());
        for i in 0..self.devices.len() {
            let done = f(i, &mut self.devices[i]);
            all.push(done.map_err(|e| self.named(i, &e))?);
        }
        Ok(all)
    }

    /// Whether a device, or a copy between two, has failed since the last step.
    fn is_failed(&self) -> bool {
        self.fault.is_some() || self.devices.iter().any(|be| be.fault.is_some())
    }

    /// The first failure since the last step. It is then forgotten, with all others.
    fn take_fault(&mut self) -> Result<(), Error> {
        let mut first = self.fault.take();
        for i in 0..self.devices.len() {
            if let Some(e) = self.devices[i].fault.take() {
                first = first.or(Some(self.named(i, &e)));
            }
        }
        first.map_or(Ok(()), Err)
    }

    /// A device, for tests.
    #[doc(hidden)]
    pub fn device_mut(&mut self, index: usize) -> &mut Vulkan {
        &mut self.devices[index]
    }

    /// Submissions of all devices so far, for tests.
    #[doc(hidden)]
    pub fn submissions(&self) -> Vec<u64> {
        self.devices.iter().map(|be| be.submissions()[0]).collect()
    }
}
