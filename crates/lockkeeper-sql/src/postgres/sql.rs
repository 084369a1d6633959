//! The statements, with the schema's name in them.

/// One for each verb; see `schema.sql` for what they do.
#[derive(Debug)]
pub(crate) struct Statements {
    pub(crate) turn: String,
    pub(crate) turn_many: String,
    pub(crate) leave: String,
    pub(crate) leave_many: String,
    pub(crate) renew: String,
    pub(crate) keep: String,
    pub(crate) look: String,
    pub(crate) clean: String,
    pub(crate) stand: String,
    pub(crate) silence: String,
}

impl Statements {
    pub(crate) fn new(schema: &str) -> Self {
        let call = |name: &str, params: usize| {
            let params: Vec<String> = (1..=params).map(|it| format!("${it}")).collect();
            format!("SELECT {schema}.lockkeeper_{name}_2({})", params.join(", "))
        };
        Statements {
            turn: call("turn", 14),
            turn_many: call("turn_many", 11),
            leave: call("leave", 4),
            leave_many: call("leave_many", 4),
            renew: call("renew", 4),
            keep: call("keep", 5),
            look: call("look", 3),
            clean: call("clean", 3),
            stand: format!("CALL {schema}.lockkeeper_stand_2($1, $2, NULL)"),
            silence: format!("SELECT pg_advisory_unlock({schema}.lockkeeper_bell_2($1))"),
        }
    }
}
