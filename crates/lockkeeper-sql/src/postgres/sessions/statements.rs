//! The statements, with the schema's name in them; see `schema.sql` for what they do.

use super::line::NAME_FRESH;
use crate::name::micros_up;

/// One for each verb.
#[derive(Debug)]
pub(super) struct Statements {
    pub(super) set: String,
    pub(super) join: String,
    pub(super) take: String,
    pub(super) take_free: String,
    pub(super) take_known: String,
    pub(super) wait_known: String,
    pub(super) find: String,
    pub(super) leave: &'static str,
    pub(super) leave_noted: String,
    pub(super) undo: String,
    pub(super) beat: String,
    pub(super) clean: String,
    pub(super) stands: &'static str,
    pub(super) lives: &'static str,
    pub(super) end: &'static str,
}

impl Statements {
    pub(super) fn new(schema: &str) -> Self {
        let call = |name: &str, params: usize| {
            let params: Vec<String> = (1..=params).map(|it| format!("${it}")).collect();
            format!("SELECT {schema}.lockkeeper_session_{name}_1({})", params.join(", "))
        };
        Statements {
            // Fences and numbers are raised when a server has started, so none of them need be on disk.
            set: "SELECT set_config('idle_session_timeout', $1, false), set_config('synchronous_commit', 'off', false), \
                  set_config('statement_timeout', $2, false)"
                .to_owned(),
            join: call("join", 3),
            take: call("take", 6),
            take_free: take_free(schema),
            take_known: take_known(schema),
            wait_known: wait_known(schema),
            find: format!(
                "SELECT ARRAY[n.number, n.born, {NOW}] FROM {schema}.lockkeeper_session_name AS n WHERE n.lock = $1"
            ),
            leave: "SELECT pg_advisory_unlock($1, $2)",
            leave_noted: call("leave", 2),
            undo: call("undo", 2),
            beat: call("beat", 1),
            clean: format!("SELECT {schema}.lockkeeper_session_clean_3($1, $2, $3)"),
            stands: "SELECT a.wait_event_type = 'Lock' FROM pg_stat_get_activity($1::integer) AS a \
                     WHERE extract(epoch FROM a.backend_start)::text = $2",
            lives: "SELECT true FROM pg_stat_get_activity($1::integer) AS a \
                    WHERE extract(epoch FROM a.backend_start)::text = $2",
            end: "SELECT pg_terminate_backend(a.pid, 5000) FROM pg_stat_get_activity($1::integer) AS a \
                  WHERE extract(epoch FROM a.backend_start)::text = $2",
        }
    }
}

/// The server's clock in microseconds.
const NOW: &str = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint";

/// What `take` does for one who does not wait and has nothing to note, in a statement of its own, which costs the server half.
/// It reads the number before it has the lock. Whether the number is still the name's need not be read again if the name is,
/// by the clock when the lock is ours, younger than any that a cleaner removes. Others go by the function. It also answers the
/// clock, and since when the name has the number.
fn take_free(schema: &str) -> String {
    let fresh = micros_up(NAME_FRESH);
    let function = format!("{schema}.lockkeeper_session_take_1($1, $2, $3, false, NULL, NULL)");
    format!(
        "SELECT CASE WHEN t.got IS NULL THEN {function} WHEN NOT t.got THEN ARRAY[0, t.number, {NOW}, 0, t.born] \
         WHEN {NOW} - {fresh} < t.born \
         THEN ARRAY[nextval('{schema}.lockkeeper_session_counter'), t.number, {NOW}, 0, t.born] \
         WHEN pg_advisory_unlock($1, t.number::integer) THEN {function} END FROM (SELECT) AS one LEFT JOIN (\
         SELECT n.number, n.born, pg_try_advisory_lock($1, n.number::integer) AS got \
         FROM {schema}.lockkeeper_session_name AS n WHERE n.lock = $2 OFFSET 0) AS t ON true"
    )
}

/// The same for one who knows the number, until when it surely is the name's: no table is read. Answers the fence's counter, 0 if
/// the lock is another's, or -1 if the number must be looked at again.
fn take_known(schema: &str) -> String {
    format!("SELECT CASE WHEN NOT pg_try_advisory_lock($1, $2) THEN 0 {} END", counted(schema))
}

/// The same for one who waits. Answers what `take` does.
fn wait_known(schema: &str) -> String {
    let counted = counted(schema);
    format!(
        "SELECT ARRAY[CASE {counted} END, $2, {NOW}, t.waited] FROM (SELECT CASE WHEN pg_try_advisory_lock($1, $2) THEN 0 \
         WHEN pg_advisory_lock($1, $2) IS NOT NULL THEN 1 END AS waited OFFSET 0) AS t"
    )
}

/// The fence, if the number is still the name's; if not, the lock is given back.
fn counted(schema: &str) -> String {
    format!(
        "WHEN clock_timestamp() < to_timestamp($3) THEN nextval('{schema}.lockkeeper_session_counter') \
         WHEN pg_advisory_unlock($1, $2) THEN -1"
    )
}
