-- From session locks to durable locks: run it with the client when no program uses the database.

DELIMITER //

DROP PROCEDURE IF EXISTS lockkeeper_durable_switch //
CREATE PROCEDURE lockkeeper_durable_switch()
MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    IF NOT EXISTS (SELECT 1 FROM lockkeeper_store WHERE version = 101) THEN
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'the database keeps no session locks';
    END IF;
    IF EXISTS (SELECT 1 FROM lockkeeper_session_member WHERE NOT IS_FREE_LOCK(CONCAT('lkm', LOWER(HEX(id))))) THEN
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'a program still uses the database; stop it';
    END IF;
    -- Counters of durable locks never fall behind the clock, which must have passed the fences given so far.
    IF EXISTS (SELECT 1 FROM lockkeeper_session_store
            WHERE ceiling * 1000 >= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))) THEN
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'the fences are ahead of the clock; wait until it has passed them';
    END IF;
    UPDATE lockkeeper_store SET version = 3;
END //
CALL lockkeeper_durable_switch() //
DROP PROCEDURE lockkeeper_durable_switch //

DELIMITER ;

DROP TABLE lockkeeper_session_member, lockkeeper_session_claim, lockkeeper_session_broken, lockkeeper_session_epoch;
DROP TABLE lockkeeper_session_store;

@DURABLE@
