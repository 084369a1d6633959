//! The statements, with the schema's name in them; see `schema.sql` for what they do.

/// One for each verb.
#[derive(Debug)]
pub(super) struct Statements {
    pub(super) set: String,
    pub(super) join: String,
    pub(super) take: String,
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
            leave: "SELECT pg_advisory_unlock($1, $2)",
            leave_noted: call("leave", 2),
            undo: call("undo", 2),
            beat: call("beat", 1),
            clean: call("clean", 3),
            stands: "SELECT a.wait_event_type = 'Lock' FROM pg_stat_get_activity($1::integer) AS a \
                     WHERE extract(epoch FROM a.backend_start)::text = $2",
            lives: "SELECT true FROM pg_stat_get_activity($1::integer) AS a \
                    WHERE extract(epoch FROM a.backend_start)::text = $2",
            end: "SELECT pg_terminate_backend(a.pid, 5000) FROM pg_stat_get_activity($1::integer) AS a \
                  WHERE extract(epoch FROM a.backend_start)::text = $2",
        }
    }
}
