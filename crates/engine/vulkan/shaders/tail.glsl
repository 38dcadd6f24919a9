// The last workgroup of a stage does a small job that depends on all of them, so that it needs no stage of its own. It waits for nobody. Who includes
// this declares the buffer tickets, which is all zeros between two stages. What the workgroups hand over lies in `coherent` buffers.
shared uint ticket_;

// Whether all of `groups` workgroups have come here, this one the last: then it sees what they wrote before. Called by all invocations.
bool is_last(uint at, uint groups) {
    memoryBarrierBuffer();
    barrier();
    if (gl_LocalInvocationIndex == 0u) {
        memoryBarrierBuffer();
        ticket_ = atomicAdd(tickets[at], 1u);
    }
    barrier();
    if (ticket_ + 1u != groups) { return false; }
    if (gl_LocalInvocationIndex == 0u) { tickets[at] = 0u; }
    memoryBarrierBuffer();
    return true;
}
