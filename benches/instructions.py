#!/usr/bin/env python3
"""How many instructions a kernel takes for a block of 32 rows by 256 columns, by emulation: no processor of the kind is needed, and no
speed is claimed. Prints the table of docs/performance-notes.md.

    cargo build --release -p octet-compute --example one_group        # and again with the variables that tests/arm.sh sets, for ARM
    benches/instructions.py target/release/examples/one_group avx2 TARGET/aarch64-unknown-linux-gnu/release/examples/one_group neon neon-i8mm

Needs qemu-user and binutils. A program is built without position-independent code (RUSTFLAGS="-C relocation-model=static"), so that
the emulator's addresses are those of the file. What is counted lies between the first and the last address of the kernels of an
instruction set: two widths of the matrix, so that what a call costs once drops out.
"""
import os, re, subprocess, sys, tempfile

TYPES = "Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS MXFP4 F32 F16 BF16".split()
MANY = 32  # tokens
ENTRY = {"avx2": "avx2_entry", "avx-vnni": "avx_vnni_entry", "neon": "neon_entry", "neon-i8mm": "neon_i8mm_entry", "portable": "portable_entry"}


def emulator(program):
    with open(program, "rb") as f:
        machine = int.from_bytes(f.read(20)[18:20], "little")
    return {62: ["qemu-x86_64"], 183: ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"]}[machine]


def kernels(program, isa):
    """First and last address of the kernels of an instruction set."""
    table = subprocess.run(["nm", "-S", program], capture_output=True, text=True, check=True).stdout
    found = re.findall(r"^([0-9a-f]+) ([0-9a-f]+) [tT] \S*7kernels\d+" + ENTRY[isa] + r"6kernel6kernel", table, re.M)
    if not found:
        sys.exit(f"{program} has no kernels of {isa}")
    spans = [(int(a, 16), int(a, 16) + int(n, 16)) for a, n in found]
    return min(a for a, _ in spans), max(b for _, b in spans)


def count(program, isa, span, ty, columns, tokens):
    with tempfile.TemporaryDirectory() as folder:
        log = os.path.join(folder, "log")
        command = emulator(program) + ["-cpu", "max", "-singlestep", "-d", "exec,nochain", "-D", log, "-dfilter", f"{span[0]:#x}..{span[1]:#x}"]
        subprocess.run(command + [program, ty, isa, str(columns), str(tokens)], check=True, stdout=subprocess.DEVNULL)
        with open(log) as f:
            return sum(line.startswith("Trace") for line in f)


def main():
    programs, program = [], None
    for word in sys.argv[1:]:
        if word in ENTRY:
            programs.append((program, word, kernels(program, word)))
        else:
            program = word
    if not programs:
        sys.exit(__doc__)
    names = [isa for _, isa, _ in programs]
    print("| type | " + " | ".join(f"{n}, 1 token" for n in names) + " | " + " | ".join(f"{n}, {MANY} tokens" for n in names) + " |")
    print("|---|" + "---:|" * (2 * len(names)))
    for ty in TYPES:
        row = []
        for tokens in (1, MANY):
            for p, isa, span in programs:
                few, more = (count(p, isa, span, ty, columns, tokens) for columns in (2048, 4096))
                row.append(f"{(more - few) / 8 / tokens:.0f}")
        print(f"| {ty} | " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
