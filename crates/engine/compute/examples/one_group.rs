//! Multiplies one group of weights with some tokens, once, for benches/instructions.py, which counts the instructions that this
//! takes: `one_group TYPE ISA COLUMNS TOKENS`.

use octet_compute::cpu::activations::Activations;
use octet_compute::cpu::isa::Isa;
use octet_compute::cpu::kernels::Kernels;
use octet_compute::cpu::kind::ROWS;
use octet_compute::cpu::pack::Packed;
use octet_weights::quant::random_blocks;
use octet_weights::{GgmlType, Matrix};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [ty, isa, cols, tokens] = &args[..] else { return Err("one_group TYPE ISA COLUMNS TOKENS".into()) };
    let ty = GgmlType::ALL.iter().find(|t| t.to_string().eq_ignore_ascii_case(ty)).ok_or("no such type")?;
    let isa = Isa::ALL.into_iter().find(|i| i.name() == isa).ok_or("no such instruction set")?;
    let kernels = Kernels::for_isa(isa).ok_or("this processor does not have it")?;
    let (cols, tokens): (usize, usize) = (cols.parse()?, tokens.parse()?);

    let mut data = vec![0; ROWS * cols / ty.block_len() * ty.block_bytes()];
    random_blocks(*ty, &mut 1, 0.02, &mut data);
    let packed = Packed::pack(&Matrix::new(*ty, ROWS, cols, data.into()))?;
    let mut activations = Activations::new(tokens, cols)?;
    let rows = activations.rows(tokens, cols);
    let x: Vec<f32> = (0..cols).map(|i| (i * 7 % 31) as f32 - 15.0).collect();
    for t in 0..tokens {
        // SAFETY: this thread alone has the rows, and writes them before it reads them.
        unsafe { rows.write(|x, out| kernels.quantise(x, out), t, &x, packed.layout().kind().form()) };
    }
    // SAFETY: as above.
    let view = unsafe { rows.view() };
    let list: Vec<u32> = (0..tokens as u32).collect();
    let mut out = vec![0.0; tokens * ROWS];
    kernels.group(&packed, 0, None, &view, &list, &mut out);
    println!("{}", out[0]);
    Ok(())
}
