//! A schedule for people: what `dump --stage schedule` prints and filetests compare.

use std::fmt;

use oxyfuel_base::Expr;
use oxyfuel_graph::{Graph, ValueId};

use crate::group::{Group, GroupKind, Schedule};

impl Schedule {
    /// Text of the schedule of `graph`.
    pub fn display<'a>(&'a self, graph: &'a Graph) -> impl fmt::Display + 'a {
        Shown {
            schedule: self,
            graph,
        }
    }
}

struct Shown<'a> {
    schedule: &'a Schedule,
    graph: &'a Graph,
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, group) in self.schedule.groups.iter().enumerate() {
            self.all(f, &format!("group {i}"), group)?;
        }
        Ok(())
    }
}

impl Shown<'_> {
    fn all(&self, f: &mut fmt::Formatter<'_>, name: &str, group: &Group) -> fmt::Result {
        if group.members.is_empty() {
            return self.group(f, name, group);
        }
        let how = match group.in_order {
            true => "one after the other",
            false => "side by side",
        };
        writeln!(f, "{name}: {} {how}", group.members.len())?;
        for (j, member) in group.members.iter().enumerate() {
            self.all(f, &format!("{name}.{j}"), member)?;
        }
        Ok(())
    }

    fn group(&self, f: &mut fmt::Formatter<'_>, name: &str, group: &Group) -> fmt::Result {
        let kind = match group.kind {
            GroupKind::Loops => "loops",
            GroupKind::Contraction(_) => "contraction",
            GroupKind::Convolution(_) => "convolution",
            GroupKind::Attention(_) => "attention",
            GroupKind::Writes(_) => "writes",
            GroupKind::External(_) => "external",
        };
        writeln!(
            f,
            "{name} {kind} over [{}] reduced {:?}{} as {:?}",
            list(&group.dims),
            group.reduced,
            group
                .scanned
                .map_or_else(String::new, |dim| format!(" scanned {dim}")),
            group.alternatives
        )?;
        if let Some(before) = &group.before {
            let (value, dims) = (self.name(before.value), list(&before.dims));
            writeln!(
                f,
                "  makes {value} over [{dims}] reduced {:?}",
                before.reduced
            )?;
        }
        writeln!(f, "  reads {}", self.names(&group.inputs))?;
        for &node in &group.nodes {
            let node = &self.graph.nodes[node];
            let dims = group.maps.get(&node.out()).map_or_else(String::new, |map| {
                let dims: Vec<String> = map
                    .iter()
                    .map(|d| d.map_or_else(|| "-".to_owned(), |d| d.to_string()))
                    .collect();
                format!(" along [{}]", dims.join(", "))
            });
            writeln!(f, "  {} = {}{dims}", self.name(node.out()), node.op.name())?;
        }
        let written: Vec<String> = group
            .outputs
            .iter()
            .map(|&v| match self.schedule.memory.root(v) {
                root if root == v => self.name(v),
                input => format!("{} into {}", self.name(v), self.name(input)),
            })
            .collect();
        writeln!(f, "  writes {}", written.join(", "))
    }

    fn name(&self, value: ValueId) -> String {
        self.graph.values[value]
            .name
            .as_ref()
            .map_or_else(|| value.to_string(), |name| format!("%{name}"))
    }

    fn names(&self, values: &[ValueId]) -> String {
        values
            .iter()
            .map(|&v| self.name(v))
            .collect::<Vec<_>>()
            .join(", ")
    }
}

fn list(dims: &[Expr]) -> String {
    dims.iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(", ")
}
