//! A reader of OpenMetrics text that believes nothing: what it returns keeps the rules of the format.

use std::collections::{BTreeMap, BTreeSet};

/// The labels of a series, in order of their names.
pub(crate) type Labels = BTreeMap<String, String>;

/// Every sample: its name and labels, and its value.
#[derive(Debug, Default)]
pub(crate) struct Exposition(pub(crate) BTreeMap<(String, Labels), f64>);

impl Exposition {
    /// The sum of all samples of this name that have these labels.
    pub(crate) fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let has =
            |all: &Labels| labels.iter().all(|(key, value)| all.get(*key).is_some_and(|it| it == value));
        self.0.iter().filter(|((it, all), _)| it == name && has(all)).map(|it| it.1).sum()
    }

    /// How many series there are; the buckets of a histogram are one.
    pub(crate) fn series(&self) -> usize {
        let without_bound = self.0.keys().map(|(name, labels)| {
            let mut labels = labels.clone();
            labels.remove("le");
            (name, labels)
        });
        without_bound.collect::<BTreeSet<_>>().len()
    }
}

/// Read a text, or say what is wrong with it.
pub(crate) fn read(text: &str) -> Result<Exposition, String> {
    let body = text.strip_suffix("# EOF\n").ok_or("it does not end with `# EOF`")?;
    let mut out = Exposition::default();
    let (mut family, mut kind) = (String::new(), String::new());
    let mut seen = BTreeSet::new();
    for line in body.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, its_kind) = rest.split_once(' ').ok_or(line)?;
            if !seen.insert(name.to_owned()) {
                return Err(format!("two families are called {name}"));
            }
            (family, kind) = (name.to_owned(), its_kind.to_owned());
        } else if let Some(rest) = line.strip_prefix("# UNIT ") {
            let unit = rest.strip_prefix(&format!("{family} ")).ok_or(line)?;
            if !family.ends_with(&format!("_{unit}")) {
                return Err(format!("the name {family} does not end with its unit {unit}"));
            }
        } else if line.starts_with("# HELP ") {
            line.strip_prefix(&format!("# HELP {family} ")).ok_or(line)?;
        } else {
            let (name, labels, value) = sample(line)?;
            fits(&family, &kind, &name, &labels)?;
            if out.0.insert((name, labels), value).is_some() {
                return Err(format!("twice the same series: {line}"));
            }
        }
    }
    check_buckets(&out)?;
    Ok(out)
}

/// Whether a sample belongs to the family that stands above it.
fn fits(family: &str, kind: &str, name: &str, labels: &Labels) -> Result<(), String> {
    let suffix = name.strip_prefix(family).ok_or_else(|| format!("{name} stands under {family}"))?;
    let right = match kind {
        "counter" => suffix == "_total" && !labels.contains_key("le"),
        "gauge" => suffix.is_empty() && !labels.contains_key("le"),
        "histogram" => {
            ["_bucket", "_count", "_sum"].contains(&suffix)
                && labels.contains_key("le") == (suffix == "_bucket")
        }
        _ => false,
    };
    if right { Ok(()) } else { Err(format!("{name} is no sample of the {kind} {family}")) }
}

/// `name{label="value",…} number`.
fn sample(line: &str) -> Result<(String, Labels, f64), String> {
    let wrong = || format!("no sample: {line}");
    let (name, rest) = line.split_once('{').ok_or_else(wrong)?;
    if name.is_empty() || !name.bytes().all(|it| it.is_ascii_lowercase() || it == b'_') {
        return Err(wrong());
    }
    let (mut labels, mut rest) = (Labels::new(), rest);
    while let Some((label, after)) = rest.split_once("=\"").filter(|it| !it.0.contains('}')) {
        let (value, after) = quoted(after).ok_or_else(wrong)?;
        if labels.insert(label.to_owned(), value).is_some() {
            return Err(wrong());
        }
        rest = after.strip_prefix(',').unwrap_or(after);
    }
    let value = rest.strip_prefix("} ").ok_or_else(wrong)?;
    Ok((name.to_owned(), labels, value.parse().map_err(|_| wrong())?))
}

/// A value up to its closing quote, and what follows.
fn quoted(text: &str) -> Option<(String, &str)> {
    let (mut out, mut chars) = (String::new(), text.char_indices());
    while let Some((at, it)) = chars.next() {
        match it {
            '"' => return Some((out, &text[at + 1..])),
            '\\' => out.push(match chars.next()?.1 {
                'n' => '\n',
                it @ ('"' | '\\') => it,
                _ => return None,
            }),
            '\n' => return None,
            it => out.push(it),
        }
    }
    None
}

/// Buckets grow with their bounds, and the last has all.
fn check_buckets(out: &Exposition) -> Result<(), String> {
    let mut histograms: BTreeMap<(String, Labels), Vec<(f64, f64)>> = BTreeMap::new();
    for ((name, labels), value) in &out.0 {
        let Some(family) = name.strip_suffix("_bucket") else { continue };
        let mut labels = labels.clone();
        let bound = labels.remove("le").ok_or("a bucket without a bound")?;
        if !bound.contains(['.', '+', 'e']) {
            return Err(format!("the bound {bound} is no floating point number"));
        }
        let bound = if bound == "+Inf" { f64::INFINITY } else { bound.parse().map_err(|_| bound)? };
        histograms.entry((family.to_owned(), labels)).or_default().push((bound, *value));
    }
    for ((family, labels), mut buckets) in histograms {
        buckets.sort_by(|one, other| one.0.total_cmp(&other.0));
        let last = *buckets.last().ok_or("no bucket")?;
        let count = out.0.get(&(format!("{family}_count"), labels.clone())).copied();
        let grows = buckets.windows(2).all(|it| it[0].1 <= it[1].1);
        if !last.0.is_infinite() || !grows || count != Some(last.1) {
            return Err(format!("buckets of {family} {labels:?} that do not add up: {buckets:?}, {count:?}"));
        }
        if !out.0.contains_key(&(format!("{family}_sum"), labels)) {
            return Err(format!("{family} has no sum"));
        }
    }
    Ok(())
}
