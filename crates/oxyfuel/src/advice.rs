//! What to do about an error, where the place that found it said nothing: one sentence a code.

use oxyfuel_base::{Code, Error, Fault};

const TABLE: &[(Code, &str)] = &[
    (
        Code::ShapeMismatch,
        "print the shapes of the operands; reshape, unsqueeze or transpose one of them so that they fit",
    ),
    (
        Code::DTypeMismatch,
        "cast one of the operands with to(), or use one that holds the result",
    ),
    (
        Code::DeviceMismatch,
        "move the tensors to one device with to_device()",
    ),
    (
        Code::RankMismatch,
        "add or remove dims with unsqueeze, squeeze or reshape",
    ),
    (
        Code::DimOutOfRange,
        "dims count from 0, or from -1 backwards, and each may be named once",
    ),
    (
        Code::IndexOutOfRange,
        "indices count from 0 to the extent of the dim, or from -1 backwards",
    ),
    (Code::LayoutMismatch, "call contiguous() first"),
    (
        Code::ArityMismatch,
        "give as many tensors as the function or the operation takes",
    ),
    (
        Code::InvalidArgument,
        "see the documentation of the method for what it allows",
    ),
    (
        Code::UnsupportedOp,
        "write it with other operations, or run it in oxyfuel::disable",
    ),
    (
        Code::UnsupportedDType,
        "cast the tensor with to() to a type that the operation takes",
    ),
    (
        Code::AliasedInputs,
        "write into a copy: contiguous() of an expanded tensor, or x + 0",
    ),
    (
        Code::UnboundSymbol,
        "give an input whose shape says what the symbol is",
    ),
    (
        Code::DataRace,
        "do not write a tensor while another thread uses it; calls that write share nothing, or take turns",
    ),
    (
        Code::StepLimit,
        "look for a loop that does not end, or check fewer instances; check_within takes another limit",
    ),
    (
        Code::SizeOverflow,
        "use smaller extents: sizes and offsets in bytes fit into 63 bits",
    ),
    (
        Code::OutOfMemory,
        "use smaller extents, a narrower dtype, or fewer tensors at a time",
    ),
    (
        Code::TooLarge,
        "stay below the limit that the message names",
    ),
    (
        Code::DivisionByZero,
        "make sure that no extent that is divided by is 0",
    ),
    (
        Code::NoDriver,
        "install the GPU's driver, or use Device::cpu()",
    ),
    (Code::NoDevice, "use a device that `oxyfuel doctor` lists"),
    (
        Code::InvalidOption,
        "see Options for what each option allows",
    ),
    (Code::UnknownOption, "see Options for the names of options"),
    (Code::Syntax, "see docs/graph.md for the grammar"),
    (Code::UnknownName, "see docs/graph.md for the vocabulary"),
    (
        Code::HostCall,
        "write the call with operations of this crate: there is no host here that has it",
    ),
    (
        Code::DuplicateName,
        "give one of the two another name; every value has its own",
    ),
    (
        Code::InvalidLiteral,
        "write a number that its type holds; docs/graph.md has the forms",
    ),
    (
        Code::NestedTooDeep,
        "write the expression with fewer brackets inside each other",
    ),
    (
        Code::OutOfBounds,
        "mask the access with valid(), or make the buffer larger",
    ),
    (
        Code::UninitializedRead,
        "store to the memory in an earlier step before it is read",
    ),
    (
        Code::InvalidGraph,
        "the message names the invariant that the graph breaks; docs/graph.md lists them",
    ),
    (
        Code::InvalidKernel,
        "the message names the invariant that the kernel breaks; docs/kernel.md lists them",
    ),
];

/// The error with a sentence on what to do.
pub(crate) fn advised(error: Error) -> Error {
    if error.help.is_some() {
        return error;
    }
    let known = TABLE.iter().find(|(code, _)| *code == error.code);
    let advice = known.map_or(
        match error.code.fault() {
            Fault::User => "see docs/errors.md for what the code means",
            Fault::Machine => "`oxyfuel doctor` says what this machine can do",
            Fault::Internal => {
                "this is a mistake of ours: please report it with the program that shows it"
            }
        },
        |(_, advice)| advice,
    );
    error.help(advice)
}
