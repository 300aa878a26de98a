//! Emitted code as text.

use std::fmt::Write as _;

use iced_x86::{Decoder, DecoderOptions, Formatter, IntelFormatter};

use crate::select::Artefact;

impl Artefact {
    /// See [`listing`].
    pub fn listing(&self) -> String {
        listing(&self.code, &self.entries)
    }
}

/// One line an instruction, with labels where jumps go; the constant pool behind the code is left out.
pub fn listing(code: &[u8], entries: &[u32]) -> String {
    let mut out = String::new();
    let mut formatter = IntelFormatter::new();
    formatter
        .options_mut()
        .set_space_after_operand_separator(true);
    formatter.options_mut().set_branch_leading_zeros(false);
    for (phase, &entry) in entries.iter().enumerate() {
        let _ = writeln!(out, "phase {phase}:");
        let code = code.get(entry as usize..).unwrap_or_default();
        let mut instructions = Vec::new();
        let mut decoder = Decoder::with_ip(64, code, u64::from(entry), DecoderOptions::NONE);
        while decoder.can_decode() {
            let i = decoder.decode();
            instructions.push(i);
            if i.code() == iced_x86::Code::Retnq {
                break;
            }
        }
        let targets: Vec<u64> = instructions
            .iter()
            .map(|i| i.near_branch_target())
            .filter(|t| *t != 0)
            .collect();
        for i in &instructions {
            if targets.contains(&i.ip()) {
                let _ = writeln!(out, "{:x}:", i.ip());
            }
            if i.mnemonic() == iced_x86::Mnemonic::Nop {
                continue;
            }
            out.push_str("    ");
            formatter.format(i, &mut out);
            out.push('\n');
        }
    }
    out
}
