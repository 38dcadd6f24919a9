//! Several graphics devices that run one model together: `--device vulkan:0,vulkan:1`, and `--tensor-split`.

use super::*;
use crate::device_layers::{self, Parts, Placed, lines};

/// Maximum number of devices of a model.
const DEVICES_MAX: usize = 8;

/// Graphics devices by their numbers, in the order of a model's layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Together {
    numbers: [usize; DEVICES_MAX],
    count: usize,
}

impl Together {
    /// `vulkan:0,vulkan:1`, or with `+` where a comma separates devices that are compared.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut all = Self { numbers: [0; DEVICES_MAX], count: 0 };
        for name in text.split([',', '+']) {
            let number = name.strip_prefix("vulkan:").and_then(|n| n.parse().ok());
            let number = number.ok_or_else(|| {
                format!("'{name}' cannot run a model together with others: expected vulkan:N with a number from `octet devices`")
            })?;
            let place = all.numbers.get_mut(all.count);
            *place.ok_or_else(|| format!("expected at most {DEVICES_MAX} devices"))? = number;
            all.count += 1;
        }
        Ok(all)
    }

    /// The devices of one list of them, if they are several graphics devices and nothing else.
    pub fn of(list: &[DeviceName]) -> Option<Self> {
        let number = |name: &DeviceName| if let DeviceName::Vulkan(n) = name { Some(*n) } else { None };
        let numbers: Vec<usize> = list.iter().map(number).collect::<Option<_>>()?;
        let mut all = Self { numbers: [0; DEVICES_MAX], count: numbers.len() };
        if numbers.len() < 2 {
            return None;
        }
        all.numbers.get_mut(..numbers.len())?.copy_from_slice(&numbers);
        Some(all)
    }

    /// How many they are.
    pub fn count(&self) -> usize {
        self.count
    }

    fn numbers(&self) -> &[usize] {
        &self.numbers[..self.count]
    }

    /// The devices as they are now.
    ///
    /// # Errors
    /// If one does not exist.
    fn cards(&self) -> Result<Vec<Card>> {
        self.numbers().iter().map(|n| card(*n)).collect()
    }

    /// Bytes that are free on all of them now.
    pub fn free_bytes(&self) -> Option<u64> {
        rooms(&self.cards().ok()?, None).into_iter().sum()
    }

    /// `--tensor-split` for these devices.
    ///
    /// # Errors
    /// If it has another number of proportions.
    fn check_proportions(&self, proportions: &[f64]) -> Result<()> {
        let (given, devices) = (proportions.len(), self.count);
        anyhow::ensure!(
            given == 0 || given == devices,
            "--tensor-split has {}, and --device names {devices} devices",
            crate::units::count(given, "proportion")
        );
        Ok(())
    }

    /// How `octet show` describes them: their names, and their free memory.
    ///
    /// # Errors
    /// If one does not exist, or `--tensor-split` has another number of proportions.
    pub fn described(
        &self,
        gpu_memory: Option<u64>,
        proportions: &[f64],
    ) -> Result<(Vec<String>, Vec<Option<u64>>)> {
        self.check_proportions(proportions)?;
        let cards = self.cards()?;
        let rooms = rooms(&cards, gpu_memory);
        Ok((cards.iter().map(Card::to_string).collect(), rooms))
    }

    /// The devices for a model within these limits. `is_checked`: a model that does not fit is refused.
    ///
    /// # Errors
    /// If one does not exist, or has too little memory.
    pub(super) fn device(
        &self,
        gpu_memory: Option<u64>,
        report: &Report,
        limits: &Limits,
        exact: bool,
        is_checked: bool,
    ) -> Result<Device> {
        let (names, rooms) = self.described(gpu_memory, &[])?;
        let parts = Parts::of(report, limits, exact);
        let counts = parts.divide(&rooms, &[])?;
        let bytes = parts.bytes(&counts);
        let short = names.iter().zip(&bytes).zip(&rooms);
        let short = short.filter_map(|(of, room)| Some((of, (*room)?))).find(|((_, n), room)| *n > room);
        if let Some(((name, bytes), room)) = short.filter(|_| is_checked) {
            let (bytes, room) = (size(*bytes), size(room));
            anyhow::bail!(
                "{} does not fit: it needs {bytes} of the memory of {name}, and {room} are free; take a smaller quantisation, or \
                 --no-memory-check to try anyway",
                report.origin
            );
        }
        let shares = self.limits(gpu_memory).into_iter().zip(counts).collect();
        Ok(several(*self, shares, exact))
    }

    /// The limit of each opening: those of one device share it.
    fn limits(&self, gpu_memory: Option<u64>) -> Vec<Option<Limit>> {
        let numbers = self.numbers();
        let of = |number: &usize| {
            let times = numbers.iter().filter(|other| *other == number).count() as u64;
            gpu_memory.map(|bytes| limit(bytes / times))
        };
        numbers.iter().map(of).collect()
    }
}

impl std::fmt::Display for Together {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (i, number) in self.numbers().iter().enumerate() {
            write!(f, "{}vulkan:{number}", if i == 0 { "" } else { "+" })?;
        }
        Ok(())
    }
}

/// Free memory of each device. One that is listed several times is shared equally.
fn rooms(cards: &[Card], gpu_memory: Option<u64>) -> Vec<Option<u64>> {
    let of = |card: &Card| {
        let times = cards.iter().filter(|other| other.index == card.index).count() as u64;
        least(card.free.map(|bytes| bytes / times), gpu_memory.map(|bytes| bytes / times))
    };
    cards.iter().map(of).collect()
}

/// What `bytes` that other models use leave of each device's memory: they are divided as this one is.
fn beside(rooms: &mut [Option<u64>], bytes: u64) {
    let all: u64 = rooms.iter().flatten().sum();
    for room in rooms.iter_mut().flatten() {
        let taken = (u128::from(bytes) * u128::from(*room) / u128::from(all.max(1))) as u64;
        *room = room.saturating_sub(taken);
    }
}

/// The largest proportion: sums of larger ones could be infinite.
const PROPORTION_MAX: f64 = 1e6;

/// A proportion of `--tensor-split`.
pub fn proportion(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|n| *n > 0.0 && *n <= PROPORTION_MAX);
    number.ok_or_else(|| {
        "expected a number above 0 and up to a million, like 3 or 0.75: each device has layers".into()
    })
}

impl DeviceFlags {
    /// Fails if `--tensor-split` does not suit `--device`.
    pub(super) fn check_split(&self) -> Result<()> {
        match self.device {
            DeviceName::Together(all) => all.check_proportions(&self.tensor_split),
            _ if self.tensor_split.is_empty() => Ok(()),
            device => anyhow::bail!(
                "--tensor-split divides a model among several devices, and --device is {device}: name them, as vulkan:0,vulkan:1"
            ),
        }
    }

    /// See [`DeviceFlags::place`].
    pub(super) fn place_together(
        &self,
        all: Together,
        wanted: &Wanted<'_>,
        among: Among,
        machine: Option<u64>,
        is_checked: bool,
    ) -> Result<Placement> {
        anyhow::ensure!(
            wanted.options.draft_model().is_none(),
            "a draft model needs one device: name one with --device, or choose another --speculative"
        );
        let now = all.cards()?;
        let first = self.cards.get_or_init(|| now.iter().map(|c| (c.index, c.free)).collect());
        // Other programs may have ended since the first model was placed.
        let cards: Vec<Card> = now
            .into_iter()
            .zip(first)
            .map(|(now, (_, free))| Card { free: now.free.max(*free), ..now })
            .collect();
        let names: Vec<String> = cards.iter().map(Card::to_string).collect();
        let mut rooms = rooms(&cards, self.gpu_memory);
        beside(&mut rooms, among.taken);
        let place = |rooms: &[Option<u64>]| device_layers::place(wanted, rooms, machine, &self.tensor_split);
        let placed = match place(&rooms)? {
            Ok(whole) => self.share_of(whole, among, &rooms, &place)?,
            Err(_) if !is_checked => {
                let unlimited = vec![None; rooms.len()];
                // Divided by what is free, as far as that is known.
                let free: Option<Vec<f64>> = rooms.iter().map(|room| room.map(|n| n.max(1) as f64)).collect();
                let by = if self.tensor_split.is_empty() {
                    free.unwrap_or_default()
                } else {
                    self.tensor_split.clone()
                };
                let placed = device_layers::place(wanted, &unlimited, None, &by)?;
                placed.map_err(|_| anyhow::anyhow!("a model without a memory limit always fits"))?
            }
            Err(least) => anyhow::bail!(
                "{} does not fit: {}.\n\
                 Close other programs that use them, give a smaller --ctx-size or --parallel, another --tensor-split, or take a smaller \
                 quantisation; experts in slots need one device. --no-memory-check loads it anyway",
                wanted.report.origin,
                device_layers::shortage(&names, &least, &rooms, machine)
            ),
        };
        let mut placement = placed.placement.clone();
        placement.layers = lines(&names, &placed, &rooms);
        let limits = self.limits.get_or_init(|| all.limits(self.gpu_memory));
        let shares = limits.iter().cloned().zip(placed.counts).collect();
        placement.options.device = Some(several(all, shares, wanted.options.cpu.exact));
        Ok(placement)
    }

    /// One of several models gets an equal share, so that all stay loaded together, if it has its whole context there.
    fn share_of(
        &self,
        whole: Placed,
        among: Among,
        rooms: &[Option<u64>],
        place: &impl Fn(&[Option<u64>]) -> Result<Result<Placed, Placed>>,
    ) -> Result<Placed> {
        if among.of < 2 {
            return Ok(whole);
        }
        let share: Vec<_> = rooms.iter().map(|room| room.map(|bytes| bytes / among.of as u64)).collect();
        let context = |placed: &Placed| placed.placement.options.context;
        Ok(place(&share)?.ok().filter(|share| context(share) == context(&whole)).unwrap_or(whole))
    }
}

/// Devices with their memory limits and numbers of layers.
#[cfg(feature = "vulkan")]
fn several(all: Together, shares: Vec<(Option<Limit>, usize)>, exact: bool) -> Device {
    let share = |(number, (memory_limit, layers)): (&usize, (Option<Limit>, usize))| octet_vulkan::Share {
        device: octet_vulkan::VulkanOptions { memory_limit, exact, ..options(*number) },
        layers,
    };
    let shares: Vec<_> = all.numbers().iter().zip(shares).map(share).collect();
    Device::new(&all.to_string(), move || octet_vulkan::Split::new(&shares))
}

#[cfg(not(feature = "vulkan"))]
fn several(all: Together, _: Vec<(Option<Limit>, usize)>, exact: bool) -> Device {
    vulkan(all.numbers()[0], Settings { limit: None, exact, slots: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_devices_are_named_together() {
        let named = |text: &str| text.parse::<DeviceName>();
        let both = named("vulkan:0,vulkan:1").unwrap();
        assert_eq!((named("vulkan:0+vulkan:1"), both.to_string()), (Ok(both), "vulkan:0+vulkan:1".into()));
        assert_eq!(both.to_string().parse(), Ok(both));
        // the same one twice, for tests
        assert_eq!(named("vulkan:2,vulkan:2,vulkan:2").unwrap().to_string(), "vulkan:2+vulkan:2+vulkan:2");
        for wrong in ["vulkan:0,cpu", "auto+vulkan:0", "vulkan:0,", "vulkan:0,,vulkan:1", "vulkan:0+vulkan"] {
            assert!(named(wrong).unwrap_err().contains("together"), "{wrong}");
        }
        assert!(named(&["vulkan:0"; 9].join(",")).unwrap_err().contains("at most 8"));
        let list = [DeviceName::Vulkan(0), DeviceName::Vulkan(1)];
        assert_eq!(Together::of(&list).map(DeviceName::Together), Some(both));
        assert_eq!(Together::of(&list[1..]), None);
        assert_eq!(Together::of(&[DeviceName::Cpu, list[0], list[1]]), None);
    }

    #[test]
    fn proportions_are_above_zero() {
        assert_eq!((proportion("3"), proportion("0.75")), (Ok(3.0), Ok(0.75)));
        for wrong in ["0", "-1", "", "x", "nan", "inf", "0.0", "1e308"] {
            assert!(proportion(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn memory_of_a_device_that_is_listed_twice_is_shared() {
        let cards = [(0, 100), (1, 70), (0, 100)];
        let cards = cards.map(|(index, free)| Card { index, free: Some(free), ..Card::default() });
        assert_eq!(rooms(&cards, None), [Some(50), Some(70), Some(50)]);
        assert_eq!(rooms(&cards, Some(60)), [Some(30), Some(60), Some(30)]);
        let mut left = rooms(&cards[..2], None);
        beside(&mut left, 17);
        assert_eq!(left, [Some(90), Some(63)]);
    }
}
