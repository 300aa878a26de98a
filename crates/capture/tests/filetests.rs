//! `tests/filetests/capture`: a description in, the graph's text out, then what stays with the host and why.
//!
//! `products=own` compiles matrix products, `products=faster` those that are faster than the host's; `frozen=1,2` names inputs that stay what they are; `images=own` says that every convolution has a kernel that reads its frozen weight in panels; `random=own` draws random numbers in kernels; `external=a,b` names nodes that shall stay with the host.

use oxyfuel_capture::{ImportOptions, Imported, Products, Random, import, read};
use oxyfuel_testkit::{Case, run_folder};

#[test]
fn capture() {
    run_folder("capture", |case| match case.command.as_str() {
        "import" => {
            let description = read(&case.input).map_err(|e| e.to_string())?;
            let imported = import(&description, &options(case)?).map_err(|e| e.to_string())?;
            Ok(shown(&imported))
        }
        other => Err(format!("unknown command `{other}`")),
    });
}

fn options(case: &Case) -> Result<ImportOptions, String> {
    let products = match case.arg("products") {
        None | Some("host") => Products::Host,
        Some("own") => Products::Own,
        Some("faster") => Products::Faster,
        Some(other) => return Err(format!("unknown products `{other}`")),
    };
    let random = match case.arg("random") {
        None | Some("host") => Random::Host,
        Some("own") => Random::Own,
        Some(other) => return Err(format!("unknown random `{other}`")),
    };
    let names = case.arg("external").unwrap_or_default().split(',');
    Ok(ImportOptions {
        products,
        random,
        frozen: (case.arg("frozen").unwrap_or_default().split(','))
            .filter_map(|n| n.parse().ok())
            .collect(),
        images: case.arg("images") == Some("own"),
        external: names.filter(|n| !n.is_empty()).map(str::to_owned).collect(),
    })
}

fn shown(imported: &Imported) -> String {
    let mut out = imported.graph.to_string();
    for e in &imported.externals {
        out += &format!("\nexternal {} {}: {}", e.node, e.target, e.reason);
    }
    out += &format!("\ninputs {:?}", imported.signature.inputs);
    out += &format!("\noutputs {:?}", imported.signature.outputs);
    out
}
