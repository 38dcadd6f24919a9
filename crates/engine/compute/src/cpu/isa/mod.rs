//! Instruction sets that the CPU kernels are compiled for, and which of them this machine runs. Read by every kernel table.

/// An instruction set that the kernels have code for, from the plainest to the widest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Isa {
    /// What the compiler makes of plain code.
    Portable,
    /// x86-64 with AVX2, FMA and F16C (Haswell, Zen).
    Avx2,
    /// x86-64 with AVX2 and AVX-VNNI (Alder Lake, Zen 5).
    AvxVnni,
    /// x86-64 with AVX-512 F, BW, DQ, VL and VNNI (Ice Lake, Zen 4).
    Avx512Vnni,
    /// ARM with NEON and dot products (Cortex-A76, Raspberry Pi 5, Graviton 2, Apple M1).
    Neon,
    /// The same with 8-bit matrix products (Neoverse V1, Graviton 3, Apple M2).
    NeonI8mm,
}

impl Isa {
    /// All of them, the plainest first.
    pub const ALL: [Self; 6] =
        [Self::Portable, Self::Avx2, Self::AvxVnni, Self::Avx512Vnni, Self::Neon, Self::NeonI8mm];

    /// The widest one that this machine runs.
    pub fn detect() -> Self {
        Self::ALL.into_iter().rev().find(|isa| isa.available()).unwrap_or(Self::Portable)
    }

    /// True where this machine runs it.
    pub fn available(self) -> bool {
        match self {
            Self::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "x86_64")]
            Self::AvxVnni => Self::Avx2.available() && is_x86_feature_detected!("avxvnni"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Vnni => {
                Self::Avx2.available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512vnni")
            }
            #[cfg(target_arch = "aarch64")]
            Self::Neon => std::arch::is_aarch64_feature_detected!("dotprod"),
            #[cfg(target_arch = "aarch64")]
            Self::NeonI8mm => Self::Neon.available() && std::arch::is_aarch64_feature_detected!("i8mm"),
            // Another architecture's.
            #[allow(unreachable_patterns)]
            _ => false,
        }
    }

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Avx2 => "avx2",
            Self::AvxVnni => "avx-vnni",
            Self::Avx512Vnni => "avx512-vnni",
            Self::Neon => "neon",
            Self::NeonI8mm => "neon-i8mm",
        }
    }
}
