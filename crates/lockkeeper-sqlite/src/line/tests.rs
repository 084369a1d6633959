//! The rule of who enters, on small lines.

use super::*;

const MAX: u32 = u32::MAX;

fn line(claims: &[(bool, u32, u32)]) -> Line {
    let entries = claims.iter().zip(1..).map(|(&(held, weight, capacity), seq)| Entry {
        seq,
        id: ClaimId::from_bytes([u8::try_from(seq).unwrap(); 16]),
        counter: 0,
        held,
        expires: Moment::NEVER,
        weight,
        capacity,
    });
    Line { entries: entries.collect(), has_expired: false, is_whole: true }
}

fn admitted(claims: &[(bool, u32, u32)]) -> Vec<usize> {
    line(claims).admit()
}

#[test]
fn the_last_who_lives_tells_whether_somebody_waits() {
    let folder = tempfile::tempdir().unwrap();
    let file = crate::file::File::open(crate::SqliteOptions::new(folder.path().join("locks.db"))).unwrap();
    let (connection, key) = (file.connection(), Key::new("room").unwrap());
    let now = Moment::from_nanos(1000);
    let wanted = || Line::wanted(connection, &key, now).unwrap();
    let stand = |seq: i64, counter: i64, expires: i64| {
        let sql = "INSERT INTO lockkeeper_claim (key, seq, id, counter, expires, since, weight, capacity, host, pid) \
                   VALUES ('room', ?1, ?2, ?3, ?4, 0, 1, 9, '', 0)";
        connection.execute(sql, params![seq, [u8::try_from(seq).unwrap(); 16], counter, expires]).unwrap();
    };
    assert!(!wanted(), "nobody is there");
    stand(1, 7, 2000);
    assert!(!wanted(), "one holds");
    stand(2, 0, 1000);
    assert!(!wanted(), "the time of whoever waits is over");
    stand(3, 0, 2000);
    stand(4, 0, 500);
    assert!(wanted(), "one waits, before another whose time is over");
}

#[test]
fn a_mutex_admits_the_head_of_an_empty_room_only() {
    assert_eq!(admitted(&[(false, 1, 1), (false, 1, 1)]), [0]);
    assert_eq!(admitted(&[(true, 1, 1), (false, 1, 1)]), [0; 0]);
}

#[test]
fn a_semaphore_admits_until_the_room_is_full() {
    assert_eq!(admitted(&[(false, 1, 3), (false, 1, 3), (false, 1, 3), (false, 1, 3)]), [0, 1, 2]);
    assert_eq!(admitted(&[(true, 2, 3), (false, 2, 3), (false, 1, 3)]), [0; 0], "nobody overtakes");
}

#[test]
fn readers_enter_together_and_a_writer_alone() {
    assert_eq!(admitted(&[(false, 1, MAX), (false, 1, MAX), (false, MAX, MAX)]), [0, 1]);
    assert_eq!(admitted(&[(true, 1, MAX), (false, MAX, MAX), (false, 1, MAX)]), [0; 0]);
    assert_eq!(admitted(&[(false, MAX, MAX), (false, 1, MAX)]), [0]);
}

#[test]
fn where_claims_disagree_the_smallest_capacity_in_the_room_counts() {
    assert_eq!(admitted(&[(true, 1, 1), (false, 1, 5)]), [0; 0]);
    assert_eq!(admitted(&[(true, 1, 5), (false, 1, 1)]), [0; 0]);
    assert_eq!(admitted(&[(false, 3, 5), (false, 1, 1)]), [0], "those who wait do not shrink the room");
}

#[test]
fn every_small_line_keeps_the_rule() {
    let claims: Vec<(u32, u32)> = vec![(1, 1), (1, 2), (2, 2), (1, 3), (3, 3)];
    let count = claims.len();
    let is_valid = |line: &Line| {
        let held: Vec<_> = line.entries.iter().filter(|it| it.held).collect();
        let room = held.iter().map(|it| it.capacity).min().unwrap_or(MAX);
        held.iter().map(|it| it.weight).sum::<u32>() <= room
    };
    for code in 0..count.pow(4) * 16 {
        let pick = |at: u32| claims[code / 16 / count.pow(at) % count];
        let all: Vec<_> = (0..4).map(|at| (code >> at & 1 == 1, pick(at).0, pick(at).1)).collect();
        let mut line = line(&all);
        if !is_valid(&line) {
            continue;
        }
        let waiting: Vec<_> = (0..4).filter(|at| !line.entries[*at].held).collect();
        let entered = line.admit();
        assert!(is_valid(&line), "{line:?}");
        assert!(waiting.starts_with(&entered), "{line:?}");
        assert!(line.admit().is_empty(), "one pass is enough: {line:?}");
        if let Some(next) = waiting.get(entered.len()) {
            line.entries[*next].held = true;
            assert!(!is_valid(&line), "the next one fits, too: {line:?}");
        }
    }
}

#[test]
fn whoever_comes_to_a_long_line_counts_its_beginning_only() {
    let file = Connection::open_in_memory().unwrap();
    schema::prepare(&file, "boot").unwrap();
    let key = Key::new("a").unwrap();
    let claim = Claim::new(key, Duration::from_secs(60)).unwrap();
    let (mut touched, mut called) = (Vec::new(), Vec::new());
    let now = Moment::from_nanos(1);
    let mut tx = Tx {
        connection: &file,
        boot: "boot",
        now,
        touched: &mut touched,
        called: &mut called,
        has_granted: false,
        must_last: false,
    };
    let mut seen = Vec::new();
    for number in 1..=200 {
        tx.insert(&claim, number, number == 1).unwrap();
        let scan = |is_new| Scan::default().go_on(&file, &claim, is_new, now).unwrap();
        seen.push((scan(true).count(), scan(true).at_least()));
        assert_eq!(scan(false).count(), Some(number.unsigned_abs()), "whoever may be in it looks at all");
    }
    assert_eq!(seen[30], (Some(31), 31));
    let long = seen[31..].iter().all(|it| *it == (None, u64::from(COUNTED)));
    assert!(long, "only the beginning of a long line is counted: {seen:?}");
}
