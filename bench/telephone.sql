-- The questions of aim.sql asked from scratch, as 000 Table 4.3 writes them, for systems that keep the events: the week
-- is a literal and is filtered first, which is the cheaper form there. Casts make every mean a double everywhere.

-- q1
SELECT avg(CAST(t_duration AS DOUBLE)) AS avg_duration
FROM (SELECT sum(duration) AS t_duration FROM events WHERE week = 27 GROUP BY entity_id HAVING count(local_calls) > 2) e;

-- q2
SELECT max(max_cost) AS max_cost
FROM (SELECT max(cost) AS max_cost FROM events WHERE week = 27 GROUP BY entity_id HAVING count(*) > 2) e;

-- q3
SELECT num_calls, sum(t_cost) / sum(t_duration) AS cost_ratio
FROM (SELECT sum(cost) AS t_cost, sum(duration) AS t_duration, count(*) AS num_calls
      FROM events WHERE week = 27 GROUP BY entity_id) e
GROUP BY num_calls ORDER BY num_calls LIMIT 100;

-- q4
SELECT city_zip, avg(CAST(num_calls AS DOUBLE)) AS avg_calls, sum(duration_calls) AS duration
FROM (SELECT entity_id, count(*) AS num_calls, sum(duration) AS duration_calls FROM events
      WHERE NOT long_distance AND week = 27 GROUP BY entity_id HAVING count(*) > 4 AND sum(duration) > 25) e, customers c
WHERE e.entity_id = c.id
GROUP BY city_zip;

-- q5
SELECT c.region_id, sum(long_distance_cost) AS cost_long, sum(local_cost) AS cost_local
FROM events e, customers c
WHERE e.entity_id = c.id AND e.week = 27 AND c.type = 2 AND c.category = 1
GROUP BY c.region_id;

-- q7
SELECT sum(cost) / sum(duration) AS cost_ratio
FROM events e, customers c
WHERE e.entity_id = c.id AND e.week = 27 AND c.value_type = 2;
