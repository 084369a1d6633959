//! A false history: transactions that no client asked for, written into a stopped server's log.
//!
//! Some states take weeks to reach (two thousand million claims in one line) or a rare race between servers. A server
//! believes its log, so they can be had at once.

use std::path::Path;

/// A transaction that makes a node.
pub(crate) struct Created<'a> {
    pub(crate) path: &'a str,
    /// The session that owns it; 0 if nobody does.
    pub(crate) owner: i64,
    /// How many nodes its parent will have had.
    pub(crate) number: i32,
}

/// Write transactions, the first of them with this number, behind what the server has in its log.
pub(crate) fn append(server: &Path, zxid: i64, transactions: &[Vec<u8>]) {
    let mut log = b"ZKLG\x00\x00\x00\x02".to_vec();
    // The id of the database.
    log.extend_from_slice(&[0; 8]);
    for (at, body) in (0_i64..).zip(transactions) {
        let (owner, rest) = body.split_at(8);
        let (kind, record) = rest.split_at(4);
        // Session, count of its requests, number, time, kind.
        let mut entry = owner.to_vec();
        entry.extend_from_slice(&[0; 4]);
        entry.extend_from_slice(&(zxid + at).to_be_bytes());
        entry.extend_from_slice(&1_i64.to_be_bytes());
        entry.extend_from_slice(kind);
        entry.extend_from_slice(record);
        log.extend_from_slice(&i64::from(adler32(&entry)).to_be_bytes());
        put_bytes(&mut log, &entry);
        log.push(b'B');
    }
    std::fs::write(server.join(format!("data/version-2/log.{zxid:x}")), log).unwrap();
}

impl Created<'_> {
    pub(crate) fn bytes(&self) -> Vec<u8> {
        const CREATE: i32 = 1;
        let mut out = self.owner.to_be_bytes().to_vec();
        out.extend_from_slice(&CREATE.to_be_bytes());
        put_bytes(&mut out, self.path.as_bytes());
        put_bytes(&mut out, b"");
        // One right: everything, for anyone.
        out.extend_from_slice(&1_i32.to_be_bytes());
        out.extend_from_slice(&31_i32.to_be_bytes());
        put_bytes(&mut out, b"world");
        put_bytes(&mut out, b"anyone");
        out.push(u8::from(self.owner != 0));
        out.extend_from_slice(&self.number.to_be_bytes());
        out
    }
}

/// A transaction that removes a node.
pub(crate) fn deleted(path: &str) -> Vec<u8> {
    const DELETE: i32 = 2;
    let mut out = 0_i64.to_be_bytes().to_vec();
    out.extend_from_slice(&DELETE.to_be_bytes());
    put_bytes(&mut out, path.as_bytes());
    out
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&i32::try_from(bytes.len()).unwrap().to_be_bytes());
    out.extend_from_slice(bytes);
}

fn adler32(bytes: &[u8]) -> u32 {
    let (a, b) = bytes.iter().fold((1, 0), |(a, b), it| {
        let a = (a + u32::from(*it)) % 65_521;
        (a, (b + a) % 65_521)
    });
    b << 16 | a
}
