//! Divides a model's layers among several graphics devices: by their free memory, or by `--tensor-split`.

use octet_engine::engine::Options;
use octet_engine::models::Limits;
use octet_engine::report::{Group, Report};
use octet_engine::vision;

use crate::device_bytes::STAGING_BYTES;
use crate::device_memory::{Placement, Room, Wanted, bill, kv_bytes, type_bytes};
use crate::units::size;

/// What a model needs of the memory of several devices.
pub struct Parts {
    /// Weights, keys and values, and states of each layer.
    layers: Vec<u64>,
    /// What comes before the first layer, on the first device.
    first: u64,
    /// The head and the block for multi-token prediction, on the last device.
    last: u64,
    /// Activations, on each device.
    each: u64,
}

impl Parts {
    /// Those of a model within these limits. Together, they are at least what one device needs.
    pub fn of(report: &Report, limits: &Limits, exact: bool) -> Self {
        let all = bill(report, limits, exact);
        let (slots, guesses) = (limits.slots + limits.spare_slots, limits.guesses);
        let mut layers: Vec<u64> = report.layers.iter().map(|types| type_bytes(types, exact)).collect();
        let in_layers = layers.iter().fold(0, |sum: u64, n| sum.saturating_add(*n));
        // A tied head is listed with the table's types.
        let head = report.group(Group::LmHead).map_or(0, |g| type_bytes(&g.types, exact));
        let mut of_guesses = 0_u64;
        for ((cache, kv), layer) in
            report.caches.iter().zip(kv_bytes(report, limits)).zip(&report.cache_layers)
        {
            let guess = (cache.guess_bytes() * slots * guesses) as u64;
            of_guesses += guess;
            let state = (cache.slot_bytes() * slots) as u64;
            layers[*layer] = layers[*layer].saturating_add(kv).saturating_add(state).saturating_add(guess);
        }
        Self {
            layers,
            first: all.weights.saturating_sub(in_layers).saturating_sub(head),
            last: head.saturating_add(all.speculation.saturating_sub(of_guesses)),
            each: all.activations,
        }
    }

    /// The memory of each device with this many layers.
    pub fn bytes(&self, counts: &[usize]) -> Vec<u64> {
        let mut next = 0;
        let of = |(i, count): (usize, &usize)| {
            let own = &self.layers[next..next + count];
            next += count;
            self.load(own, i, counts.len())
        };
        counts.iter().enumerate().map(of).collect()
    }

    /// The memory of device `i` of `count`, with these layers.
    fn load(&self, own: &[u64], i: usize, count: usize) -> u64 {
        let first = if i == 0 { self.first } else { 0 };
        let last = if i + 1 == count { self.last } else { 0 };
        own.iter().fold(self.each.saturating_add(first).saturating_add(last), |sum, n| sum.saturating_add(*n))
    }

    /// The number of layers of each device, one at least. Without `proportions`, the fullest device is as empty as can be.
    ///
    /// # Errors
    /// If there are fewer layers than devices.
    pub fn divide(&self, rooms: &[Option<u64>], proportions: &[f64]) -> anyhow::Result<Vec<usize>> {
        let (layers, devices) = (self.layers.len(), rooms.len());
        anyhow::ensure!(
            layers >= devices,
            "the model has {layers} layers, and {devices} devices need one each: name fewer with --device"
        );
        let ends = match proportions {
            [] => self.best(rooms),
            _ => by_proportion(layers, proportions),
        };
        let starts = std::iter::once(0).chain(ends.iter().copied());
        Ok(ends.iter().zip(starts).map(|(end, start)| end - start).collect())
    }

    /// The ends of the devices' layers for which the largest share of a device's memory is as small as possible.
    fn best(&self, rooms: &[Option<u64>]) -> Vec<usize> {
        let (layers, devices) = (self.layers.len(), rooms.len());
        let share = |own: &[u64], i: usize| {
            self.load(own, i, devices) as f64 / rooms[i].map_or(u64::MAX, |room| room.max(1)) as f64
        };
        // Of the first devices with this many layers: the largest share, and where the last device's layers begin.
        let mut best = vec![vec![(f64::INFINITY, 0); layers + 1]; devices];
        for i in 0..devices {
            for end in i + 1..=layers - (devices - 1 - i) {
                let starts = if i == 0 { 0..1 } else { i..end };
                for start in starts {
                    let before = if i == 0 { 0.0 } else { best[i - 1][start].0 };
                    let largest = share(&self.layers[start..end], i).max(before);
                    if largest < best[i][end].0 {
                        best[i][end] = (largest, start);
                    }
                }
            }
        }
        let mut ends = vec![layers; devices];
        for i in (1..devices).rev() {
            ends[i - 1] = best[i][ends[i]].1;
        }
        ends
    }
}

/// The ends of the devices' layers by proportions, each to the nearest layer.
fn by_proportion(layers: usize, proportions: &[f64]) -> Vec<usize> {
    let all: f64 = proportions.iter().sum();
    let (mut sum, mut end) = (0.0, 0);
    let of = |(i, part): (usize, &f64)| {
        sum += part;
        let nearest = (layers as f64 * sum / all).round() as usize;
        // One for each device.
        end = nearest.clamp(end + 1, layers - (proportions.len() - 1 - i));
        end
    };
    proportions.iter().enumerate().map(of).collect()
}

/// A model on several devices.
pub struct Placed {
    pub placement: Placement,
    /// Layers of each device.
    pub counts: Vec<usize>,
    /// Bytes of each device's memory.
    pub bytes: Vec<u64>,
}

/// The largest sizes of a model with which each device has room for its layers. If none do, the memory that each needs at least.
///
/// Sizes are reduced as on one device ([`Wanted::place`]), but experts are always on the devices. The tower that reads images is on the processor.
pub fn place(
    wanted: &Wanted<'_>,
    rooms: &[Option<u64>],
    machine: Option<u64>,
    proportions: &[f64],
) -> anyhow::Result<Result<Placed, Placed>> {
    let (of, config) = (&wanted.report.origin, &wanted.report.config);
    anyhow::ensure!(
        config.encoder().is_none() && config.plan.streams.is_none(),
        "{of}: encoders, and models with several residual streams (Gemma 3n), run on one device only: name one with --device"
    );
    wanted.report.check_kv(wanted.options.kv)?;
    let vision = wanted.options.vision.clone().map(|v| vision::Options { on_device: false, ..v });
    let options = Options { vision, ..wanted.options.clone() };
    let wanted = Wanted { options: &options, ..*wanted };
    let missing = |bytes: &[u64], rooms: &[Option<u64>]| -> u64 {
        let of = |(bytes, room): (&u64, &Option<u64>)| room.map_or(0, |room| bytes.saturating_sub(room));
        bytes.iter().zip(rooms).map(of).fold(0, u64::saturating_add)
    };
    let mut least: Option<(u64, Placed)> = None;
    for size in wanted.sizes().into_iter().filter(|size| size.slots_min.is_none()) {
        let mut placement = wanted.sized(size, None)?;
        // There are no steps ahead.
        placement.limits.spare_slots = 0;
        let exact = options.cpu.exact;
        let parts = Parts::of(wanted.report, &placement.limits, exact);
        let counts = parts.divide(rooms, proportions)?;
        let bytes = parts.bytes(&counts);
        // Each device but one more has memory that it shares with the host, and all have some for copies between them.
        let rows = 8 * (placement.limits.batch_tokens * wanted.report.config.hidden) as u64;
        let copies = (counts.len() as u64 - 1) * STAGING_BYTES + counts.len() as u64 * rows;
        let short = missing(&bytes, rooms)
            .saturating_add(missing(&[placement.split.machine.saturating_add(copies)], &[machine]));
        if short == 0 {
            placement.smaller = wanted.smaller(size, None);
            let room = Room { device: None, machine: machine.map(|bytes| bytes.saturating_sub(copies)) };
            wanted.add_snapshots(&mut placement, room)?;
        }
        placement.limits.spare_slots = 0;
        placement.split.device = bytes.iter().fold(0, |sum, n| sum.saturating_add(*n));
        placement.split.machine = placement.split.machine.saturating_add(copies);
        let placed = Placed { placement, counts, bytes };
        if short == 0 {
            return Ok(Ok(placed));
        }
        if least.as_ref().is_none_or(|(before, _)| short < *before) {
            least = Some((short, placed));
        }
    }
    let (_, least) = least.expect("at least one size was tried");
    Ok(Err(least))
}

/// For the user: the layers of each device, its memory, and what is free of it.
pub fn lines(names: &[String], placed: &Placed, rooms: &[Option<u64>]) -> Vec<String> {
    let mut next = 0;
    let line = |((name, count), (bytes, room)): ((&String, &usize), (&u64, &Option<u64>))| {
        let (first, last) = (next, next + count - 1);
        next += count;
        let which =
            if first == last { format!("layer {first}") } else { format!("layers {first} to {last}") };
        let free = room.map_or_else(String::new, |room| format!(" of {} free", size(room)));
        format!("{name}: {which}, {}{free}", size(*bytes))
    };
    names.iter().zip(&placed.counts).zip(placed.bytes.iter().zip(rooms)).map(line).collect()
}

/// Message for the user: why a model does not fit on several devices. `least` is the minimum that it needs.
pub fn shortage(names: &[String], least: &Placed, rooms: &[Option<u64>], machine: Option<u64>) -> String {
    if let Some(free) = machine.filter(|free| *free < least.placement.split.machine) {
        return format!(
            "it needs at least {} of the machine's memory, for the parts that are not on the devices, and {} are free",
            size(least.placement.split.machine),
            size(free)
        );
    }
    format!("it needs at least these parts of the devices' memory: {}", lines(names, least, rooms).join("; "))
}

#[cfg(test)]
mod tests {
    use octet_synth::{Mix, tiny};

    use super::*;
    use crate::device_memory::with_spare;

    fn parts(layers: &[u64]) -> Parts {
        Parts { layers: layers.to_vec(), first: 0, last: 0, each: 0 }
    }

    #[test]
    fn layers_are_divided_by_free_memory() {
        let divide = |parts: &Parts, rooms: &[u64]| {
            parts.divide(&rooms.iter().map(|r| Some(*r)).collect::<Vec<_>>(), &[]).unwrap()
        };
        let even = parts(&[10; 8]);
        assert_eq!(divide(&even, &[100, 100]), [4, 4]);
        assert_eq!(divide(&even, &[60, 20]), [6, 2]);
        assert_eq!(divide(&even, &[20, 40, 20]), [2, 4, 2]);
        // one layer at least, however small a device is
        assert_eq!(divide(&even, &[1000, 1]), [7, 1]);
        // the head takes room of the last device
        let head = Parts { last: 40, ..parts(&[10; 8]) };
        assert_eq!(divide(&head, &[60, 60]), [6, 2]);
        // large layers
        assert_eq!(divide(&parts(&[50, 10, 10, 10, 10, 10]), &[60, 60]), [1, 5]);
        // a division that fits is found where there is only one
        assert_eq!(even.bytes(&divide(&even, &[31, 52])), [30, 50]);
        assert_eq!(even.divide(&[None, None], &[]).unwrap(), [4, 4]);
        assert!(parts(&[10]).divide(&[None, None], &[]).is_err());
    }

    #[test]
    fn proportions_are_those_of_layers() {
        let divide = |layers, by: &[f64]| parts(&vec![1; layers]).divide(&vec![None; by.len()], by).unwrap();
        assert_eq!(divide(40, &[3.0, 1.0]), [30, 10]);
        assert_eq!(divide(10, &[0.5, 0.5]), [5, 5]);
        assert_eq!(divide(3, &[100.0, 1.0, 1.0]), [1, 1, 1]);
        assert_eq!(divide(7, &[1.0, 1.0, 1.0]), [2, 3, 2]);
        assert_eq!(divide(4, &[1.0, 100.0]), [1, 3]);
    }

    /// Together, devices need what one needs, and their activations.
    #[test]
    fn all_parts_are_counted_once() {
        for name in ["llama", "qwen35", "qwen35moe"] {
            let report = Report::new(&tiny(name, Mix::Q4KM).unwrap()).unwrap();
            let limits = with_spare(Limits { guesses: 3, mtp: true, ..Limits::single(1000) });
            let one = bill(&report, &limits, false);
            let parts = Parts::of(&report, &limits, false);
            let counts = parts.divide(&[None, None], &[]).unwrap();
            let bytes: u64 = parts.bytes(&counts).iter().sum();
            // Each layer's values of a type are rounded up by themselves.
            let more = bytes - (one.total() + one.activations);
            assert!(more <= 2048 * parts.layers.len() as u64, "{name}: {more}");
            assert!(parts.last > 0 && parts.layers.iter().all(|n| *n > 0));
        }
    }

    #[test]
    fn sizes_shrink_until_each_device_has_room() {
        let report = Report::new(&tiny("qwen35moe", Mix::Q4KM).unwrap()).unwrap();
        let options = Options { context: Some(1000), max_seqs: 8, ..Options::default() };
        let wanted = Wanted { report: &report, options: &options, contexts: &[4, 1], snapshots: None };
        let all = place(&wanted, &[None, None], None, &[]).unwrap().ok().expect("no limit");
        assert_eq!((all.placement.options.kv_tokens, all.counts.iter().sum::<usize>()), (Some(4000), 4));
        let rooms: Vec<_> = all.bytes.iter().map(|bytes| Some(*bytes)).collect();
        let same = place(&wanted, &rooms, None, &[]).unwrap().ok().expect("exactly enough");
        assert_eq!(same.counts, all.counts);
        let less = [rooms[0].map(|n| n - 1), rooms[1].map(|n| n - 1)];
        let less = place(&wanted, &less, None, &[]).unwrap().ok().expect("a smaller cache");
        assert_eq!(less.placement.options.kv_tokens, Some(1000));
        let names = ["vulkan:0".to_string(), "vulkan:1".to_string()];
        let none = [Some(1000), Some(1000)];
        let least = place(&wanted, &none, None, &[]).unwrap().err().expect("no room");
        assert!(least.placement.slots.is_none());
        let text = shortage(&names, &least, &none, None);
        assert!(text.contains("vulkan:0: layer") && text.contains("vulkan:1: layer"), "{text}");
        // a division by proportions is kept, whatever is free
        let fixed = place(&wanted, &rooms, None, &[1.0, 3.0]).unwrap();
        assert_eq!(fixed.map_or_else(|p| p.counts, |p| p.counts), [1, 3]);
    }
}
