-- From session locks to durable locks: run it when no program uses the schema. All or nothing.
BEGIN;
LOCK TABLE @SCHEMA@.lockkeeper_store, @SCHEMA@.lockkeeper_session_member, @SCHEMA@.lockkeeper_session_name
    IN ACCESS EXCLUSIVE MODE;
DO $switch$ BEGIN
    IF (SELECT version FROM @SCHEMA@.lockkeeper_store) <> 101 THEN
        RAISE EXCEPTION 'the schema keeps no session locks';
    END IF;
    IF EXISTS (SELECT 1 FROM @SCHEMA@.lockkeeper_session_member AS m WHERE NOT pg_try_advisory_xact_lock(
        @SCHEMA@.lockkeeper_session_class_1('lockkeeper_session_member'), m.number::integer)) THEN
        RAISE EXCEPTION 'a program still uses the schema; stop it';
    END IF;
    -- Counters of durable locks never fall behind the clock, which must have passed the fences given so far.
    IF (SELECT last_value FROM @SCHEMA@.lockkeeper_session_counter) >= (extract(epoch FROM clock_timestamp()) * 1000)::bigint
    THEN
        RAISE EXCEPTION 'the fences are ahead of the clock by % ms; wait until it has passed them',
            (SELECT last_value FROM @SCHEMA@.lockkeeper_session_counter)
            - (extract(epoch FROM clock_timestamp()) * 1000)::bigint;
    END IF;
END $switch$;
@DURABLE@
DROP TABLE @SCHEMA@.lockkeeper_session_member, @SCHEMA@.lockkeeper_session_name, @SCHEMA@.lockkeeper_session_store,
    @SCHEMA@.lockkeeper_session_epoch, @SCHEMA@.lockkeeper_session_note, @SCHEMA@.lockkeeper_session_broken;
DROP SEQUENCE @SCHEMA@.lockkeeper_session_counter, @SCHEMA@.lockkeeper_session_number;
UPDATE @SCHEMA@.lockkeeper_store SET version = 1;
COMMIT;
