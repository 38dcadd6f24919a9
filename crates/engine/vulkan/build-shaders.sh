#!/usr/bin/env bash
# Compiles shaders/*.comp to SPIR-V. Needs glslc and spirv-val (Debian: glslc spirv-tools). With a folder, writes there instead of spirv/.
set -euo pipefail
cd "$(dirname "$0")"
out=${1:-spirv}
mkdir -p "$out"
for shader in shaders/*.comp; do
    name=$(basename "$shader" .comp)
    glslc -O --target-env=vulkan1.2 "$shader" -o "$out/$name.spv"
    glslc -O --target-env=vulkan1.2 -DDOT "$shader" -o "$out/$name.dot.spv"
    spirv-val --target-env vulkan1.2 "$out/$name.spv" "$out/$name.dot.spv" 2>/dev/null ||
        { spirv-val --target-env vulkan1.2 "$out/$name.spv"; spirv-val --target-env vulkan1.2 "$out/$name.dot.spv"; }
done
