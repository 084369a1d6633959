//! `lockkeeper leader`: who leads, now or with every change.

use lockkeeper::{Key, Leader, Leaders};
use serde::Serialize;

use crate::args::Leads;
use crate::exit::{self, Result};
use crate::output::{self, span};
use crate::store::Target;
use crate::text;

/// Who leads, in JSON.
#[derive(Serialize)]
struct Seen<'a> {
    name: &'a str,
    leader: Option<InJson<'a>>,
    /// Why nobody knows.
    #[serde(skip_serializing_if = "Option::is_none")]
    unknown: Option<String>,
}

#[derive(Serialize)]
struct InJson<'a> {
    value: &'a str,
    host: &'a str,
    pid: u32,
    /// As text: it may exceed 2^53, beyond which some JSON readers round numbers.
    term: String,
    age_ms: u64,
}

impl<'a> Seen<'a> {
    fn of(key: &'a Key, leader: Option<&'a Leader>) -> Self {
        let leader = leader.map(|it| InJson {
            value: &it.value,
            host: &it.holder.host,
            pid: it.holder.pid,
            term: it.term.to_string(),
            age_ms: u64::try_from(it.age.as_millis()).unwrap_or(u64::MAX),
        });
        Seen { name: key.as_str(), leader, unknown: None }
    }
}

pub(crate) async fn leader(target: &Target, args: &Leads) -> Result<u8> {
    let key = args.role.key()?;
    let locker = target.open().await?.locker.build();
    if args.watch {
        let leaders = locker.leaders(&key).map_err(|it| target.failure(it))?;
        return watch(leaders, &key, args.role.json.json).await;
    }
    let leader = locker.leader(&key).await.map_err(|it| target.failure(it))?;
    if args.role.json.json {
        output::json(&Seen::of(&key, leader.as_ref()))?;
    } else if let Some(leader) = &leader {
        output::data(&in_words(leader))?;
    } else {
        output::say(&format!("nobody leads {}", text::quoted(key.as_str())));
    }
    Ok(if leader.is_some() { 0 } else { exit::BUSY })
}

fn in_words(leader: &Leader) -> String {
    let Leader { value, term, holder, age, .. } = leader;
    let (value, host, pid, age) = (text::cell(value), text::cell(&holder.host), holder.pid, span(*age));
    format!("value:   {value}\nholder:  {host} pid {pid}\nterm:    {term}\nage:     {age}\n")
}

/// Tell every change, until nobody listens any more.
async fn watch(mut leaders: Leaders, key: &Key, as_json: bool) -> Result<u8> {
    loop {
        let seen = leaders.next().await;
        let line = match (&seen, as_json) {
            (Ok(leader), true) => in_one_line(&Seen::of(key, leader.as_ref()))?,
            (Ok(Some(leader)), false) => {
                let Leader { value, term, holder, age, .. } = leader;
                let (value, host, pid) = (text::cell(value), text::cell(&holder.host), holder.pid);
                format!("{value}  {host} pid {pid}  term {term}  for {}\n", span(*age))
            }
            (Ok(None), false) => "vacant\n".to_owned(),
            (Err(error), true) => {
                in_one_line(&Seen { name: key.as_str(), leader: None, unknown: Some(error.to_string()) })?
            }
            (Err(error), false) if error.is_transient() => {
                output::say(&format!("nobody knows who leads: {error}"));
                continue;
            }
            (Err(error), false) => return Err(error.clone().into()),
        };
        if !output::is_heard(&line)? {
            return Ok(0);
        }
    }
}

fn in_one_line(seen: &Seen<'_>) -> Result<String> {
    let written = serde_json::to_string(seen).map_err(|it| {
        exit::Failure::new(exit::OUTPUT, format!("the answer cannot be written as JSON: {it}"))
    })?;
    Ok(text::json(&written) + "\n")
}
