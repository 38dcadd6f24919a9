//! The Vulkan loader, its list of devices, and an open device.

use std::ffi::{CStr, c_char};
use std::sync::Arc;

use ash::vk;
use octet_compute::Error;

use crate::kernel::BUFFERS_MAX;

/// The kind of device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceKind {
    /// A graphics card with its own memory.
    Discrete,
    /// A graphics processor that shares the machine's memory.
    Integrated,
    /// A processor that runs kernels in software: for tests.
    Software,
    /// Anything else, such as a device of a virtual machine.
    Other,
}

impl std::fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Discrete => "discrete",
            Self::Integrated => "integrated",
            Self::Software => "software",
            Self::Other => "other",
        })
    }
}

/// A device as `octet devices` lists it.
#[derive(Debug, Clone)]
pub struct DeviceInfo {
    /// Its number: `vulkan:0` is the first.
    pub index: usize,
    /// The maker's name of it.
    pub name: String,
    /// Its kind.
    pub kind: DeviceKind,
    /// The driver's name and version.
    pub driver: String,
    /// Vulkan's version, as `1.3.230`.
    pub api: String,
    /// Bytes of its largest memory.
    pub memory_bytes: u64,
    /// Bytes of that memory available to a model: the free memory that the driver reports, minus a reserve for other programs.
    pub free_bytes: u64,
    /// Kernels multiply four bytes with one instruction.
    pub integer_dot: bool,
    /// Invocations that run side by side.
    pub subgroup: u32,
    /// The missing features, if Octet cannot use it.
    pub missing: Vec<String>,
}

/// The loader and its instance. Dropped last.
struct Instance {
    instance: ash::Instance,
    _entry: ash::Entry,
}

impl Drop for Instance {
    fn drop(&mut self) {
        // SAFETY: every object made from the instance holds an `Arc` of it, so none is left.
        unsafe { self.instance.destroy_instance(None) };
    }
}

impl Instance {
    fn new() -> Result<Self, Error> {
        // SAFETY: the loader is the system's own; it is loaded once and stays loaded for as long as `_entry` lives.
        let entry = unsafe { ash::Entry::load() }.map_err(|_| {
            Error("no Vulkan loader is installed: install libvulkan1 (Debian, Ubuntu) or vulkan-loader (Fedora)".into())
        })?;
        let app = vk::ApplicationInfo::default().application_name(c"octet").api_version(vk::API_VERSION_1_2);
        let portable = [ash::khr::portability_enumeration::NAME.as_ptr()];
        // SAFETY: no arguments but a place for the result.
        let known = unsafe { entry.enumerate_instance_extension_properties(None) }.unwrap_or_default();
        let is_portable =
            known.iter().any(|e| e.extension_name_as_c_str() == Ok(ash::khr::portability_enumeration::NAME));
        let mut info = vk::InstanceCreateInfo::default().application_info(&app);
        if is_portable {
            info = info
                .enabled_extension_names(&portable)
                .flags(vk::InstanceCreateFlags::ENUMERATE_PORTABILITY_KHR);
        }
        // SAFETY: `info` and what it points to live until the call returns.
        match unsafe { entry.create_instance(&info, None) } {
            Ok(instance) => Ok(Self { instance, _entry: entry }),
            Err(vk::Result::ERROR_INCOMPATIBLE_DRIVER) => Err(Error(
                "no working Vulkan driver is installed: install the card's driver, or mesa-vulkan-drivers for AMD, Intel and the software \
                 device. If one is installed, VK_LOADER_DEBUG=error shows why it is not used"
                    .into(),
            )),
            // The loader reports this for a list of drivers that it cannot read, too.
            Err(e) => Err(Error(format!(
                "Vulkan does not start: {e}. A file in /usr/share/vulkan/icd.d, /etc/vulkan/icd.d or VK_DRIVER_FILES may be damaged: \
                 VK_LOADER_DEBUG=error shows which"
            ))),
        }
    }

    fn physical(&self) -> Result<Vec<vk::PhysicalDevice>, Error> {
        // SAFETY: the instance is alive.
        unsafe { self.instance.enumerate_physical_devices() }
            .map_err(|e| Error(format!("Vulkan cannot list devices: {e}")))
    }

    fn info(&self, index: usize, device: vk::PhysicalDevice) -> DeviceInfo {
        let mut driver = vk::PhysicalDeviceDriverProperties::default();
        let mut subgroup = vk::PhysicalDeviceSubgroupProperties::default();
        let mut properties =
            vk::PhysicalDeviceProperties2::default().push_next(&mut driver).push_next(&mut subgroup);
        // SAFETY: the device belongs to this instance, and the chained structures outlive the calls.
        let memory = unsafe {
            self.instance.get_physical_device_properties2(device, &mut properties);
            self.instance.get_physical_device_memory_properties(device)
        };
        let p = properties.properties;
        let text = |chars: &[c_char]| {
            let bytes: Vec<u8> = chars.iter().take_while(|c| **c != 0).map(|c| *c as u8).collect();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        let heaps = memory.memory_heaps_as_slice();
        let local = heaps.iter().filter(|h| h.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL));
        let (kind, api) = (p.device_type, p.api_version);
        let mut missing = Vec::new();
        if api < vk::API_VERSION_1_2 {
            missing.push("Vulkan 1.2".to_string());
        }
        if p.limits.max_compute_work_group_invocations < 256
            || p.limits.max_compute_shared_memory_size < 32 << 10
        {
            missing.push("workgroups of 256 invocations with 32 KiB of shared memory".to_string());
        }
        if p.limits.max_per_stage_descriptor_storage_buffers < BUFFERS_MAX as u32 {
            missing.push(format!("kernels that read {BUFFERS_MAX} buffers"));
        }
        if self.queue_families(device).compute.is_none() {
            missing.push("a compute queue".to_string());
        }
        DeviceInfo {
            index,
            name: text(&p.device_name),
            kind: match kind {
                vk::PhysicalDeviceType::DISCRETE_GPU => DeviceKind::Discrete,
                vk::PhysicalDeviceType::INTEGRATED_GPU => DeviceKind::Integrated,
                vk::PhysicalDeviceType::CPU => DeviceKind::Software,
                _ => DeviceKind::Other,
            },
            driver: format!("{} {}", text(&driver.driver_name), text(&driver.driver_info)).trim().to_string(),
            api: format!(
                "{}.{}.{}",
                vk::api_version_major(api),
                vk::api_version_minor(api),
                vk::api_version_patch(api)
            ),
            memory_bytes: local.map(|h| h.size).max().unwrap_or(0),
            free_bytes: self.free_bytes(device),
            integer_dot: self.has_integer_dot(device),
            subgroup: subgroup.subgroup_size,
            missing,
        }
    }

    /// Budget minus usage minus half a GiB, if the driver reports them (`VK_EXT_memory_budget`); else the heap minus 1 GiB.
    fn free_bytes(&self, device: vk::PhysicalDevice) -> u64 {
        let mut budget = vk::PhysicalDeviceMemoryBudgetPropertiesEXT::default();
        let counts = self.has_extension(device, ash::ext::memory_budget::NAME);
        let mut memory = vk::PhysicalDeviceMemoryProperties2::default();
        if counts {
            memory = memory.push_next(&mut budget);
        }
        // SAFETY: the device belongs to this instance, and the chained structure outlives the call.
        unsafe { self.instance.get_physical_device_memory_properties2(device, &mut memory) };
        let heaps = memory.memory_properties;
        let local = heaps.memory_heaps_as_slice().iter().enumerate();
        let local = local.filter(|(_, h)| h.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL));
        let Some((i, heap)) = local.max_by_key(|(_, h)| h.size) else { return 0 };
        match counts {
            true => budget.heap_budget[i].saturating_sub(budget.heap_usage[i]).saturating_sub(512 << 20),
            false => heap.size.saturating_sub(1 << 30),
        }
    }

    fn queue_families(&self, device: vk::PhysicalDevice) -> QueueFamilies {
        // SAFETY: the device belongs to this instance.
        let families = unsafe { self.instance.get_physical_device_queue_family_properties(device) };
        let flags: Vec<_> = families.iter().map(|f| f.queue_flags).collect();
        QueueFamilies::choose(&flags)
    }

    /// Valid bits of the timestamps of this family of queues; 0 if it has none.
    fn timestamp_bits(&self, device: vk::PhysicalDevice, family: u32) -> u32 {
        // SAFETY: the device belongs to this instance.
        let families = unsafe { self.instance.get_physical_device_queue_family_properties(device) };
        families.get(family as usize).map_or(0, |f| f.timestamp_valid_bits)
    }

    fn has_extension(&self, device: vk::PhysicalDevice, name: &CStr) -> bool {
        // SAFETY: the device belongs to this instance.
        let all = unsafe { self.instance.enumerate_device_extension_properties(device) }.unwrap_or_default();
        all.iter().any(|e| e.extension_name_as_c_str() == Ok(name))
    }

    fn has_integer_dot(&self, device: vk::PhysicalDevice) -> bool {
        if !self.has_extension(device, ash::khr::shader_integer_dot_product::NAME) {
            return false;
        }
        let mut dot = vk::PhysicalDeviceShaderIntegerDotProductFeatures::default();
        let mut features = vk::PhysicalDeviceFeatures2::default().push_next(&mut dot);
        // SAFETY: the chained structure outlives the call.
        unsafe { self.instance.get_physical_device_features2(device, &mut features) };
        dot.shader_integer_dot_product == vk::TRUE
    }
}

/// All devices of the system's Vulkan loader, in its order.
///
/// # Errors
/// Without a loader or a driver: what to install.
pub fn devices() -> Result<Vec<DeviceInfo>, Error> {
    let instance = Instance::new()?;
    let all = instance.physical()?;
    Ok(all.into_iter().enumerate().map(|(i, d)| instance.info(i, d)).collect())
}

/// Which families of queues to use.
#[derive(Debug, PartialEq, Eq)]
struct QueueFamilies {
    /// For kernels, and for copies between them.
    compute: Option<u32>,
    /// For copies beside a running step: the card's copy engine. Many integrated and software devices have none.
    copies: Option<u32>,
}

impl QueueFamilies {
    /// The first family with kernels, and the first one that does nothing but copies.
    fn choose(families: &[vk::QueueFlags]) -> Self {
        let compute = families.iter().position(|f| f.contains(vk::QueueFlags::COMPUTE));
        // Queues with kernels can copy, too, but share the processors of the running step. NVIDIA's queues for video copy as well.
        let no_more_than =
            vk::QueueFlags::TRANSFER | vk::QueueFlags::SPARSE_BINDING | vk::QueueFlags::PROTECTED;
        let copies = families
            .iter()
            .position(|f| f.contains(vk::QueueFlags::TRANSFER) && (*f & !no_more_than).is_empty());
        Self { compute: compute.map(|i| i as u32), copies: copies.map(|i| i as u32) }
    }
}

/// A queue of an open device.
#[derive(Clone, Copy)]
pub(crate) struct Queue {
    pub(crate) raw: vk::Queue,
    pub(crate) family: u32,
    /// What its commands may wait for: kernels and copies, or copies alone.
    pub(crate) stages: vk::PipelineStageFlags,
}

impl Queue {
    /// The same queue, for copies alone.
    pub(crate) fn for_copies(self) -> Self {
        Self { stages: vk::PipelineStageFlags::TRANSFER, ..self }
    }

    /// Whether it runs kernels.
    fn has_kernels(&self) -> bool {
        self.stages.contains(vk::PipelineStageFlags::COMPUTE_SHADER)
    }

    /// How its commands read.
    pub(crate) fn reads(&self) -> vk::AccessFlags {
        let kernels =
            if self.has_kernels() { vk::AccessFlags::SHADER_READ } else { vk::AccessFlags::empty() };
        kernels | vk::AccessFlags::TRANSFER_READ
    }

    /// How its commands write.
    pub(crate) fn writes(&self) -> vk::AccessFlags {
        let kernels =
            if self.has_kernels() { vk::AccessFlags::SHADER_WRITE } else { vk::AccessFlags::empty() };
        kernels | vk::AccessFlags::TRANSFER_WRITE
    }
}

/// An open device with a compute queue, and a queue for copies if it has one.
pub(crate) struct Device {
    pub(crate) raw: ash::Device,
    pub(crate) queue: Queue,
    pub(crate) copy_queue: Option<Queue>,
    pub(crate) memory: vk::PhysicalDeviceMemoryProperties,
    /// Maximum size of a buffer that a kernel can bind, in bytes.
    pub(crate) buffer_bytes_max: u64,
    /// Valid bits of its queue's timestamps, and the nanoseconds of a tick.
    pub(crate) timestamp_bits: u32,
    pub(crate) timestamp_ns: f32,
    /// Unique to the kernels that this device and driver compile: `pipelineCacheUUID`.
    pub(crate) kernels_id: [u8; vk::UUID_SIZE],
    pub(crate) info: DeviceInfo,
    physical: vk::PhysicalDevice,
    instance: Instance,
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: buffers, pipelines and command pools hold an `Arc` of the device, so none is left.
        unsafe { self.raw.destroy_device(None) };
    }
}

impl Device {
    /// The families of its queues.
    pub(crate) fn families(&self) -> Vec<u32> {
        std::iter::once(self.queue).chain(self.copy_queue).map(|q| q.family).collect()
    }

    /// Bytes of its own memory that may be allocated now.
    pub(crate) fn free_bytes(&self) -> u64 {
        self.instance.free_bytes(self.physical)
    }

    /// Opens the device with this number.
    pub(crate) fn open(index: usize) -> Result<Arc<Self>, Error> {
        let instance = Instance::new()?;
        let all = instance.physical()?;
        let physical = *all.get(index).ok_or_else(|| {
            Error(format!(
                "there is no device vulkan:{index}; this machine has {} (see 'octet devices')",
                all.len()
            ))
        })?;
        let info = instance.info(index, physical);
        if !info.missing.is_empty() {
            return Err(Error(format!("vulkan:{index} ({}) lacks {}", info.name, info.missing.join(", "))));
        }
        let families = instance.queue_families(physical);
        let family = families.compute.expect("checked by `info`");
        let mut names = Vec::new();
        let mut dot =
            vk::PhysicalDeviceShaderIntegerDotProductFeatures::default().shader_integer_dot_product(true);
        let portability = c"VK_KHR_portability_subset";
        if instance.has_extension(physical, portability) {
            names.push(portability.as_ptr());
        }
        let priorities = [1.0];
        let queue_of = |family: u32| {
            vk::DeviceQueueCreateInfo::default().queue_family_index(family).queue_priorities(&priorities)
        };
        let queues: Vec<_> = std::iter::once(family).chain(families.copies).map(queue_of).collect();
        // Vulkan 1.2 devices have these.
        let mut timeline = vk::PhysicalDeviceTimelineSemaphoreFeatures::default().timeline_semaphore(true);
        let mut create = vk::DeviceCreateInfo::default().queue_create_infos(&queues).push_next(&mut timeline);
        if info.integer_dot {
            names.push(ash::khr::shader_integer_dot_product::NAME.as_ptr());
            create = create.push_next(&mut dot);
        }
        create = create.enabled_extension_names(&names);
        // SAFETY: the device belongs to the instance; `create` and what it points to outlive the calls; the queue families
        // exist, differ, and have one queue each.
        unsafe {
            let raw = instance
                .instance
                .create_device(physical, &create, None)
                .map_err(|e| Error(format!("vulkan:{index} ({}) cannot be opened: {e}", info.name)))?;
            let copies = vk::PipelineStageFlags::TRANSFER;
            let queue_of = |family, stages| Queue { raw: raw.get_device_queue(family, 0), family, stages };
            let queue = queue_of(family, copies | vk::PipelineStageFlags::COMPUTE_SHADER);
            let copy_queue = families.copies.map(|family| queue_of(family, copies));
            let memory = instance.instance.get_physical_device_memory_properties(physical);
            let properties = instance.instance.get_physical_device_properties(physical);
            Ok(Arc::new(Self {
                raw,
                queue,
                copy_queue,
                memory,
                buffer_bytes_max: u64::from(properties.limits.max_storage_buffer_range),
                timestamp_bits: instance.timestamp_bits(physical, family),
                timestamp_ns: properties.limits.timestamp_period,
                kernels_id: properties.pipeline_cache_uuid,
                info,
                physical,
                instance,
            }))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Families in the order in which the makers' drivers list them.
    #[test]
    fn copies_get_the_cards_copy_engine() {
        use vk::QueueFlags as F;
        let all = F::GRAPHICS | F::COMPUTE | F::TRANSFER | F::SPARSE_BINDING;
        let compute = F::COMPUTE | F::TRANSFER | F::SPARSE_BINDING;
        let copies = F::TRANSFER | F::SPARSE_BINDING;
        let video = F::TRANSFER | F::SPARSE_BINDING | F::VIDEO_DECODE_KHR;
        let choose = |families: &[F]| {
            let chosen = QueueFamilies::choose(families);
            (chosen.compute, chosen.copies)
        };
        assert_eq!(choose(&[all, copies, compute, video]), (Some(0), Some(1)), "NVIDIA");
        assert_eq!(choose(&[compute, copies]), (Some(0), Some(1)), "NVIDIA's cards without graphics");
        assert_eq!(
            choose(&[all, compute, F::VIDEO_DECODE_KHR | F::TRANSFER, F::SPARSE_BINDING]),
            (Some(0), None),
            "AMD"
        );
        assert_eq!(choose(&[all, compute, copies]), (Some(0), Some(2)), "AMD with a copy engine");
        assert_eq!(choose(&[F::GRAPHICS | F::COMPUTE | F::TRANSFER]), (Some(0), None), "Intel, lavapipe");
        assert_eq!(choose(&[F::GRAPHICS, copies]), (None, Some(1)), "no kernels");
    }
}
