//! Kernels with their constants as pipelines, made when they are first used. Called by `record`.

use std::collections::HashMap;
use std::sync::Arc;

use ash::vk;
use octet_compute::Error;

use crate::device::Device;
use crate::kernel::Kernel;

/// Bytes of push constants that every device has.
pub(crate) const PUSH_BYTES: usize = 128;

/// A kernel and the values of its specialisation constants.
pub(crate) type PipelineKey = (Kernel, [u32; 3]);

/// A pipeline with the layout that binds its buffers.
#[derive(Clone, Copy)]
pub(crate) struct Pipeline {
    pub(crate) raw: vk::Pipeline,
    pub(crate) layout: vk::PipelineLayout,
    pub(crate) set_layout: vk::DescriptorSetLayout,
}

/// All pipelines of a device.
pub(crate) struct Pipelines {
    device: Arc<Device>,
    modules: HashMap<Kernel, vk::ShaderModule>,
    /// By the number of buffers.
    layouts: HashMap<usize, (vk::DescriptorSetLayout, vk::PipelineLayout)>,
    made: HashMap<PipelineKey, Pipeline>,
    /// Four bytes are multiplied by one instruction.
    pub(crate) dot: bool,
}

impl Drop for Pipelines {
    fn drop(&mut self) {
        let d = &self.device.raw;
        // SAFETY: the backend waits for the device before it drops the pipelines, so none is in use.
        unsafe {
            self.made.values().for_each(|p| d.destroy_pipeline(p.raw, None));
            for (set, layout) in self.layouts.values() {
                d.destroy_pipeline_layout(*layout, None);
                d.destroy_descriptor_set_layout(*set, None);
            }
            self.modules.values().for_each(|m| d.destroy_shader_module(*m, None));
        }
    }
}

impl Pipelines {
    pub(crate) fn new(device: Arc<Device>) -> Self {
        let dot = device.info.integer_dot;
        Self { device, modules: HashMap::new(), layouts: HashMap::new(), made: HashMap::new(), dot }
    }

    /// The pipeline of a kernel with these constants.
    pub(crate) fn get(&mut self, key: PipelineKey) -> Result<Pipeline, Error> {
        if let Some(p) = self.made.get(&key) {
            return Ok(*p);
        }
        let (kernel, constants) = key;
        let failed = |e: vk::Result| {
            Error(format!("the kernel '{}' cannot be compiled by the driver: {e}", kernel.name()))
        };
        let module = self.module(kernel).map_err(failed)?;
        let (set_layout, layout) = self.layout(kernel.buffers()).map_err(failed)?;
        let entry = |id: u32| vk::SpecializationMapEntry { constant_id: id, offset: 4 * id, size: 4 };
        let entries = [entry(0), entry(1), entry(2)];
        let data: Vec<u8> = constants.iter().flat_map(|c| c.to_ne_bytes()).collect();
        let special = vk::SpecializationInfo::default().map_entries(&entries).data(&data);
        let stage = vk::PipelineShaderStageCreateInfo::default()
            .stage(vk::ShaderStageFlags::COMPUTE)
            .module(module)
            .name(c"main")
            .specialization_info(&special);
        let info = [vk::ComputePipelineCreateInfo::default().stage(stage).layout(layout)];
        // SAFETY: module and layout are alive; what `info` points to outlives the call.
        let made =
            unsafe { self.device.raw.create_compute_pipelines(vk::PipelineCache::null(), &info, None) };
        let raw = made.map_err(|(_, e)| failed(e))?[0];
        let pipeline = Pipeline { raw, layout, set_layout };
        self.made.insert(key, pipeline);
        Ok(pipeline)
    }

    fn module(&mut self, kernel: Kernel) -> Result<vk::ShaderModule, vk::Result> {
        if let Some(m) = self.modules.get(&kernel) {
            return Ok(*m);
        }
        let code = kernel.spirv(self.dot);
        let info = vk::ShaderModuleCreateInfo::default().code(&code);
        // SAFETY: the code is SPIR-V that glslc made and spirv-val checked.
        let module = unsafe { self.device.raw.create_shader_module(&info, None) }?;
        self.modules.insert(kernel, module);
        Ok(module)
    }

    fn layout(
        &mut self,
        buffers: usize,
    ) -> Result<(vk::DescriptorSetLayout, vk::PipelineLayout), vk::Result> {
        if let Some(layouts) = self.layouts.get(&buffers) {
            return Ok(*layouts);
        }
        let bindings: Vec<_> = (0..buffers as u32)
            .map(|i| {
                vk::DescriptorSetLayoutBinding::default()
                    .binding(i)
                    .descriptor_type(vk::DescriptorType::STORAGE_BUFFER)
                    .descriptor_count(1)
                    .stage_flags(vk::ShaderStageFlags::COMPUTE)
            })
            .collect();
        let info = vk::DescriptorSetLayoutCreateInfo::default().bindings(&bindings);
        let range = [vk::PushConstantRange::default()
            .stage_flags(vk::ShaderStageFlags::COMPUTE)
            .size(PUSH_BYTES as u32)];
        // SAFETY: what the structures point to outlives the calls.
        unsafe {
            let set = self.device.raw.create_descriptor_set_layout(&info, None)?;
            let sets = [set];
            let info =
                vk::PipelineLayoutCreateInfo::default().set_layouts(&sets).push_constant_ranges(&range);
            let layout = self.device.raw.create_pipeline_layout(&info, None)?;
            self.layouts.insert(buffers, (set, layout));
            Ok((set, layout))
        }
    }
}
