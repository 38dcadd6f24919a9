#version 450
// Finds a slot in the device's memory for each expert that a step reads (group.comp's tiles). Those that have none get the slot that was used
// longest ago, the lowest one on a tie, but never one that this step reads; fill.comp copies them there. Where no slot is left, an expert stays in the
// host's memory and is read from there. One workgroup.
layout(local_size_x = 256) in;

layout(binding = 0, std430) readonly buffer Tiles { uint tiles[]; };  // count; then (expert, first pair, pairs) each
// of each layer: slot of each expert (or NONE), expert of each slot (or NONE), step in which each slot was last used, and the number of steps
layout(binding = 1, std430) buffer Slots { uint slots[]; };
layout(binding = 2, std430) writeonly buffer Fills { uint fills[]; };  // count; then (expert, slot) each

layout(push_constant) uniform Push { uint experts, slots, at; } p;

const uint NONE = 0xffffffffu;
shared uint oldest[256];
shared uint where_[256];
shared uint now;

void main() {
    uint me = gl_LocalInvocationID.x, owner = p.at + p.experts, used = owner + p.slots, count = tiles[0];
    if (me == 0u) {
        now = slots[used + p.slots] + 1u;
        slots[used + p.slots] = now;
    }
    barrier();
    for (uint i = me; i < count; i += 256u) {
        uint slot = slots[p.at + tiles[1u + 3u * i]];
        if (slot != NONE) { slots[used + slot] = now; }
    }
    memoryBarrierBuffer();
    barrier();
    uint filled = 0u;
    for (uint i = 0u; i < count; i++) {
        uint expert = tiles[1u + 3u * i];
        if (slots[p.at + expert] != NONE) { continue; }
        uint least = NONE, at = NONE;
        for (uint s = me; s < p.slots; s += 256u) {
            uint when = slots[used + s];
            if (when != now && when < least) { least = when; at = s; }
        }
        oldest[me] = least;
        where_[me] = at;
        barrier();
        for (uint half_ = 128u; half_ > 0u; half_ >>= 1) {
            if (me < half_) {
                bool better = oldest[me + half_] < oldest[me] || (oldest[me + half_] == oldest[me] && where_[me + half_] < where_[me]);
                if (better) { oldest[me] = oldest[me + half_]; where_[me] = where_[me + half_]; }
            }
            barrier();
        }
        uint slot = where_[0];
        if (slot == NONE) { break; }  // the same for all
        if (me == 0u) {
            uint before = slots[owner + slot];
            if (before != NONE) { slots[p.at + before] = NONE; }
            slots[owner + slot] = expert;
            slots[used + slot] = now;
            slots[p.at + expert] = slot;
            fills[1u + 2u * filled] = expert;
            fills[2u + 2u * filled] = slot;
        }
        filled++;
        memoryBarrierBuffer();
        barrier();
    }
    if (me == 0u) { fills[0] = filled; }
}
