//! The statements, with the schema's name in them.

/// A statement, as it is sent by a session of our own, and by one that a pooler may have given to anybody before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sql<'a> {
    pub(crate) own: &'a str,
    pub(crate) pooled: &'a str,
}

impl<'a> From<&'a str> for Sql<'a> {
    fn from(it: &'a str) -> Self {
        Sql { own: it, pooled: it }
    }
}

impl<'a> From<&'a String> for Sql<'a> {
    fn from(it: &'a String) -> Self {
        it.as_str().into()
    }
}

/// A call of a function that relies on the settings of our own sessions. In others they are made with the call.
#[derive(Debug)]
pub(crate) struct Call {
    own: String,
    pooled: String,
}

impl<'a> From<&'a Call> for Sql<'a> {
    fn from(it: &'a Call) -> Self {
        Sql { own: &it.own, pooled: &it.pooled }
    }
}

/// One for each verb; see `schema.sql` for what they do.
#[derive(Debug)]
pub(crate) struct Statements {
    pub(crate) turn: Call,
    pub(crate) turn_many: String,
    pub(crate) leave: Call,
    pub(crate) leave_many: String,
    pub(crate) renew: String,
    pub(crate) linger: String,
    pub(crate) lower: String,
    pub(crate) differing: String,
    pub(crate) keep: String,
    pub(crate) hear: String,
    pub(crate) look: String,
    pub(crate) clean: String,
    pub(crate) stand: String,
    pub(crate) silence: String,
}

impl Statements {
    pub(crate) fn new(schema: &str) -> Self {
        let call = |name: &str, params: usize| {
            let params: Vec<String> = (1..=params).map(|it| format!("${it}")).collect();
            format!("SELECT {schema}.lockkeeper_{name}_3({})", params.join(", "))
        };
        let quick = |name: &str, params: usize| {
            let own = call(name, params);
            // What stands in FROM is done first.
            Call { pooled: format!("{own} FROM {schema}.lockkeeper_settings_3()"), own }
        };
        Statements {
            turn: quick("turn", 14),
            turn_many: call("turn_many", 11),
            leave: quick("leave", 4),
            leave_many: call("leave_many", 4),
            renew: call("renew", 4),
            // Whoever is next reckoned with another end.
            linger: format!(
                "SELECT {schema}.lockkeeper_renew_3(ARRAY[$1], ARRAY[$2], ARRAY[$3], ARRAY[$4]), \
                 (SELECT pg_notify(w.wake, encode(w.id, 'hex')) FROM (SELECT c.wake, c.id \
                 FROM {schema}.lockkeeper_claim AS c WHERE c.lock = $1 AND NOT c.held ORDER BY c.seq LIMIT 1) AS w \
                 WHERE w.wake IS NOT NULL)"
            ),
            lower: call("lower", 5),
            differing: format!(
                "SELECT min(c.capacity) FROM {schema}.lockkeeper_claim AS c WHERE c.lock = $1 \
                 AND c.capacity NOT IN ($2, 1, 4294967295)"
            ),
            keep: call("keep", 5),
            hear: call("hear", 4),
            look: call("look", 3),
            clean: call("clean", 3),
            stand: format!("CALL {schema}.lockkeeper_stand_3($1, $2, NULL)"),
            silence: format!("SELECT pg_advisory_unlock({schema}.lockkeeper_bell_3($1))"),
        }
    }
}
