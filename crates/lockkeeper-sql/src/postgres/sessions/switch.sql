-- From durable locks to session locks: run it when no program uses the schema. All or nothing.
BEGIN;
LOCK TABLE @SCHEMA@.lockkeeper_store, @SCHEMA@.lockkeeper_claim, @SCHEMA@.lockkeeper_lock IN ACCESS EXCLUSIVE MODE;
DO $switch$ BEGIN
    IF (SELECT version FROM @SCHEMA@.lockkeeper_store) <> 1 THEN
        RAISE EXCEPTION 'the schema keeps no durable locks';
    END IF;
    IF EXISTS (SELECT 1 FROM @SCHEMA@.lockkeeper_claim
        WHERE expires > (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) THEN
        RAISE EXCEPTION 'somebody holds a lock or waits for one; stop the programs that use the schema';
    END IF;
END $switch$;
@SESSIONS@
SELECT setval('@SCHEMA@.lockkeeper_session_counter', greatest(
    (SELECT max(counter) FROM @SCHEMA@.lockkeeper_lock),
    nextval('@SCHEMA@.lockkeeper_session_counter'), (extract(epoch FROM clock_timestamp()) * 1000)::bigint));
-- The server has forgotten no session of this schema: there was none.
INSERT INTO @SCHEMA@.lockkeeper_session_epoch VALUES (1, pg_postmaster_start_time())
ON CONFLICT (one) DO UPDATE SET started = excluded.started;
-- A program of the other mode that still runs finds no tables, looks at the version, and stops.
DROP TABLE @SCHEMA@.lockkeeper_claim CASCADE;
DROP TABLE @SCHEMA@.lockkeeper_lock CASCADE;
UPDATE @SCHEMA@.lockkeeper_store SET version = 101;
COMMIT;
