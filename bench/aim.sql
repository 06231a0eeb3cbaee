-- The analytical queries of the AIM benchmark (000 Table 4.3), with the parameters 000 ran: α = 2, β = 2, γ = 4, δ = 25,
-- t = 2, cat = 1, v = 2. Q6 is not one view.
--
-- current_week() is not Spark's, and a view may not ask the time: the current week is the one row of table clock. It is
-- joined above the grouping by week, so that moving the clock shows at the next query, whatever week the events came in.
-- Q3's LIMIT has an order. Relations: events (stream), customers and clock (tables); their columns are in aim.py.

-- q1
SELECT avg(t_duration) AS avg_duration
FROM (SELECT entity_id, week, sum(duration) AS t_duration FROM events GROUP BY entity_id, week
      HAVING count(local_calls) > 2) e, clock
WHERE e.week = clock.week;

-- q2
SELECT max(max_cost) AS max_cost
FROM (SELECT entity_id, week, max(cost) AS max_cost FROM events GROUP BY entity_id, week HAVING count(*) > 2) e, clock
WHERE e.week = clock.week;

-- q3
SELECT num_calls, sum(t_cost) / sum(t_duration) AS cost_ratio
FROM (SELECT entity_id, week, sum(cost) AS t_cost, sum(duration) AS t_duration, count(*) AS num_calls
      FROM events GROUP BY entity_id, week) e, clock
WHERE e.week = clock.week
GROUP BY num_calls ORDER BY num_calls LIMIT 100;

-- q4
SELECT city_zip, avg(num_calls) AS avg_calls, sum(duration_calls) AS duration
FROM (SELECT entity_id, week, count(*) AS num_calls, sum(duration) AS duration_calls FROM events
      WHERE NOT long_distance GROUP BY entity_id, week HAVING count(*) > 4 AND sum(duration) > 25) e, customers c, clock
WHERE e.entity_id = c.id AND e.week = clock.week
GROUP BY city_zip;

-- q5
SELECT region_id, cost_long, cost_local
FROM (SELECT c.region_id, e.week, sum(long_distance_cost) AS cost_long, sum(local_cost) AS cost_local
      FROM events e, customers c WHERE e.entity_id = c.id AND c.type = 2 AND c.category = 1
      GROUP BY c.region_id, e.week) r, clock
WHERE r.week = clock.week;

-- q7
SELECT t_cost / t_duration AS cost_ratio
FROM (SELECT e.week, sum(cost) AS t_cost, sum(duration) AS t_duration FROM events e, customers c
      WHERE e.entity_id = c.id AND c.value_type = 2 GROUP BY e.week) r, clock
WHERE r.week = clock.week;
