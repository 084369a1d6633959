//! A line as its nodes' names tell it: who stands where, and how much each takes.
//!
//! A node is called `<claim id>-<weight>-<capacity>-<number>`. The number comes from the store, counts from the
//! line's first node and may wrap around after two thousand million; all that stand in a line at one time are
//! far closer together than that.

use lockkeeper_core::{Claim, ClaimId, Load};

/// One node of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stand {
    pub(crate) name: String,
    pub(crate) id: ClaimId,
    pub(crate) load: Load,
    pub(crate) number: i32,
}

/// What the name of a claim's node begins with; the store adds the number.
pub(crate) fn name_of(claim: &Claim) -> String {
    format!("{}-{}-{}-", claim.id.to_hex(), claim.load.weight, claim.load.capacity)
}

impl Stand {
    /// Read a name. `None` if it is not one of ours.
    pub(crate) fn read(name: String) -> Option<Self> {
        let mut parts = name.splitn(4, '-');
        let id = ClaimId::from_hex(parts.next()?)?;
        let load = Load::new(parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        let number = parts.next()?.parse().ok()?;
        Some(Stand { name, id, load, number })
    }
}

/// The line in its order. Names that are not ours are passed over.
pub(crate) fn in_order(names: Vec<String>) -> Vec<Stand> {
    let mut line: Vec<Stand> = names.into_iter().filter_map(Stand::read).collect();
    if let Some(any) = line.first().map(|it| it.number) {
        line.sort_by_key(|it| it.number.wrapping_sub(any));
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(numbers: &[i32]) -> Vec<String> {
        numbers.iter().map(|it| format!("{}-1-4-{it:010}", "0".repeat(32))).collect()
    }

    #[test]
    fn a_line_is_in_order_also_where_its_numbers_wrap_around() {
        let numbers = |line: Vec<Stand>| line.iter().map(|it| it.number).collect::<Vec<_>>();
        assert_eq!(numbers(in_order(names(&[7, 3, 12]))), [3, 7, 12]);
        let (last, first) = (i32::MAX, i32::MIN);
        assert_eq!(
            numbers(in_order(names(&[first + 1, last - 1, first, last]))),
            [last - 1, last, first, first + 1]
        );
    }

    #[test]
    fn what_is_not_ours_is_passed_over() {
        let foreign = ["lock-0000000001", "", "zz-1-1-0000000001", "-----"].map(str::to_owned).to_vec();
        assert_eq!(in_order(foreign), []);
        let stand = Stand::read(format!("{}-2-3-0000000009", "a".repeat(32))).unwrap();
        assert_eq!((stand.load, stand.number), (Load::new(2, 3), 9));
    }
}
