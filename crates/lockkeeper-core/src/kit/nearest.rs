//! Words that are nearly right: which known one somebody who mistyped may have meant.

/// The known word that is nearest, if one is near.
pub(crate) fn nearest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    let letters = word.chars().count();
    let near = known.iter().map(|it| (distance(word, it), *it)).min()?;
    (near.0 <= 1.max(letters / 3) && near.0 < letters).then_some(near.1)
}

/// How many letters must be changed, added, left out or swapped with their neighbour.
fn distance(one: &str, other: &str) -> usize {
    let (one, other): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
    let mut rows = vec![(0..=other.len()).collect::<Vec<usize>>()];
    for (i, a) in one.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, b) in other.iter().enumerate() {
            let mut best = (rows[i][j] + usize::from(a != b)).min(rows[i][j + 1] + 1).min(row[j] + 1);
            if 0 < i && 0 < j && *a == other[j - 1] && one[i - 1] == *b {
                best = best.min(rows[i - 1][j - 1] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[one.len()][other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_finds_its_word_and_a_stranger_does_not() {
        let known = ["wait", "ttl", "max_hold", "or_else", "ca"];
        for (word, meant) in [("tll", "ttl"), ("wiat", "wait"), ("maxhold", "max_hold"), ("cq", "ca")] {
            assert_eq!(nearest(word, &known), Some(meant), "{word}");
        }
        for word in ["colour", "x", "a", ""] {
            assert_eq!(nearest(word, &known), None, "{word}");
        }
        assert_eq!(nearest("word", &[]), None);
    }
}
