-- From durable locks to session locks: run it with the client when no program uses the database. Safe to run again.

DELIMITER //

DROP PROCEDURE IF EXISTS lockkeeper_session_switch //
CREATE PROCEDURE lockkeeper_session_switch()
MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    DECLARE v_now BIGINT DEFAULT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
    IF NOT EXISTS (SELECT 1 FROM lockkeeper_store WHERE version = 4) THEN
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'the database keeps no durable locks of this version';
    END IF;
    IF EXISTS (SELECT 1 FROM lockkeeper_claim WHERE expires > v_now)
        OR EXISTS (SELECT 1 FROM lockkeeper_lock WHERE id IS NOT NULL AND expires > v_now) THEN
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'somebody holds a lock or waits for one; stop the programs';
    END IF;
END //
CALL lockkeeper_session_switch() //
DROP PROCEDURE lockkeeper_session_switch //

DELIMITER ;

@SESSIONS@

-- The first session passes over a million: from here that leads just above what was given.
UPDATE lockkeeper_session_store
SET ceiling = GREATEST(ceiling, COALESCE((SELECT MAX(counter) FROM lockkeeper_lock), 0) - 1048575);
-- Programs of the other mode that still run find no procedures, look at the version, and stop.
UPDATE lockkeeper_store SET version = 101;
DROP PROCEDURE IF EXISTS lockkeeper_turn_4;
DROP PROCEDURE IF EXISTS lockkeeper_leave_4;
DROP PROCEDURE IF EXISTS lockkeeper_break_4;
DROP PROCEDURE IF EXISTS lockkeeper_clean_4;
DROP PROCEDURE IF EXISTS lockkeeper_settle_4;
DROP PROCEDURE IF EXISTS lockkeeper_gather_4;
DROP PROCEDURE IF EXISTS lockkeeper_lower_4;
DROP PROCEDURE IF EXISTS lockkeeper_behind_4;
DROP PROCEDURE IF EXISTS lockkeeper_upgrade_4;
DROP TABLE lockkeeper_claim;
DROP TABLE lockkeeper_lock;
