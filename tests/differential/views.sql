-- Views the harness checks against Spark. A case is a name and a query: to add one, add it here.
-- Streams s and r, table t: see test_views_match_spark.py. [spark] marks what the native engine leaves to Spark,
-- [query] what is new in the plan and not in the engines: checked natively, in chunks.

-- count
SELECT g, count(*) AS c, count(x) AS cx FROM s GROUP BY g;

-- names
SELECT g, count(*), sum(x + 1), max(d) FROM s GROUP BY g;

-- sums
SELECT k, sum(x) AS a, sum(d) AS b, sum(f) AS c, avg(x) AS d, avg(d) AS e, avg(f) AS f FROM s GROUP BY k;

-- extremes
SELECT g, min(x) a, max(x) b, min(f) c, max(f) d, min(g) e, max(day) h, min(ts) i, max(n) j, min(b) k FROM s
GROUP BY g;

-- spread
SELECT k, stddev(x) a, variance(d) b, stddev_pop(f) c, var_pop(x) d FROM s WHERE f < 100 OR f IS NULL GROUP BY
k;

-- spread of large values
SELECT g, var_pop(1000000 + x) a, variance(CAST(1000000 AS BIGINT) + k) b, stddev(100000 + d) FILTER (WHERE k < 4) c,
var_pop(CASE WHEN k = 1 THEN 1000000 ELSE 0 END + x) d, stddev_pop(f) e FROM s GROUP BY g;

-- spread of all
SELECT var_pop(1000000 + x) a, var_samp(f) b, count(*) c FROM s;

-- booleans
SELECT g, bool_and(b) a, bool_or(b) o, every(x > 0) e FROM s GROUP BY g;

-- distinct count
SELECT g, count(DISTINCT k) a, count(DISTINCT k, x) b, count(*) c, sum(DISTINCT k) d FROM s GROUP BY g;

-- global
SELECT count(*) c, sum(x) s, avg(d) a, stddev(x) sd, count(DISTINCT g) cd, max(g) m FROM s;

-- global of nothing
SELECT count(*) c, sum(x) s, avg(d) a, min(g) m, count(DISTINCT g) cd FROM s WHERE x > 1000;

-- filter clause
SELECT g, count(*) FILTER (WHERE x > 0) a, sum(d) FILTER (WHERE b) c, count(DISTINCT k) FILTER (WHERE x > 5) e
FROM s GROUP BY g;

-- expressions
SELECT upper(g) u, k % 2 m, sum(x * 2 - 1) a, sum(d * d) b, avg(d / 3) c FROM s WHERE NOT (x BETWEEN -3 AND 3)
AND g LIKE 'a%' GROUP BY upper(g), k % 2;

-- case
SELECT CASE WHEN x > 10 THEN 'big' WHEN x < 0 THEN 'neg' ELSE coalesce(g, 'none') END c, count(*) n FROM s
GROUP BY 1;

-- dates
SELECT year(day) y, month(day) m, count(*) n, max(day + INTERVAL 1 MONTH) a, min(date_add(day, 3)) b FROM s
GROUP BY year(day), month(day);

-- hours
SELECT date_trunc('HOUR', ts) h, hour(n) hn, count(*) c FROM s GROUP BY ALL;

-- windows
SELECT window.start AS a, window.end AS e, count(*) n FROM s GROUP BY window(ts, '6 hours');

-- having
SELECT g, count(*) AS c FROM s GROUP BY g HAVING count(*) > 8 AND sum(x) > 0 AND c < 100;

-- group only
SELECT g, k FROM s GROUP BY g, k;

-- distinct
SELECT DISTINCT g, b FROM s;

-- no rows
SELECT g, count(*) c FROM s WHERE FALSE GROUP BY g;

-- constant
SELECT 'x' AS tag, count(*) + 1 AS c FROM s GROUP BY g;

-- join below
SELECT t.name, sum(s.x) a, count(*) n, sum(s.d * t.w) w FROM s JOIN t ON s.k = t.id GROUP BY t.name;

-- join below, table first
SELECT t.name, count(*) n FROM t, s WHERE s.k = t.id AND t.w > 0 GROUP BY t.name;

-- left join below
SELECT t.name, count(*) n, count(t.id) m FROM s LEFT JOIN t ON s.k = t.id AND s.x > 0 GROUP BY t.name;

-- semi join below
SELECT g, count(*) n FROM s LEFT SEMI JOIN t ON s.k = t.id GROUP BY g;

-- anti join below
SELECT g, count(*) n FROM s LEFT ANTI JOIN t ON s.k = t.id GROUP BY g;

-- theta join below
SELECT t.id, count(*) n FROM s JOIN t ON s.x > t.id GROUP BY t.id;

-- using
SELECT id, count(*) n FROM (SELECT k AS id, x FROM s) JOIN t USING (id) GROUP BY id;

-- join above
SELECT a.g, t.name, a.n FROM (SELECT k, g, count(*) n FROM s GROUP BY k, g) a JOIN t ON a.k = t.id;

-- left join above
SELECT t.id, a.n FROM t LEFT JOIN (SELECT k, count(*) n FROM s GROUP BY k) a ON a.k = t.id;

-- full join above
SELECT t.id, a.n FROM t FULL JOIN (SELECT k, count(*) n FROM s GROUP BY k) a ON a.k = t.id;

-- right join above
SELECT t.id, a.n FROM (SELECT k, count(*) n FROM s GROUP BY k) a RIGHT JOIN t ON a.k = t.id;

-- grouped streams
SELECT a.g, a.n, b.m FROM (SELECT g, count(*) n FROM s GROUP BY g) a JOIN (SELECT g, sum(y) m FROM r GROUP BY
g) b ON a.g = b.g;

-- grouped streams, outer
SELECT a.g, a.n, b.m FROM (SELECT g, count(*) n FROM s GROUP BY g) a FULL JOIN (SELECT g, sum(y) m FROM r
GROUP BY g) b ON a.g <=> b.g;

-- one stream twice
SELECT a.g, a.n, b.m FROM (SELECT g, count(*) n FROM s GROUP BY g) a JOIN (SELECT g, max(x) m FROM s WHERE x <
20 GROUP BY g) b ON a.g = b.g;

-- cte twice
WITH c AS (SELECT g, count(*) n FROM s GROUP BY g) SELECT a.g, a.n - b.n AS d FROM c a JOIN c b ON a.n >= b.n;

-- nested
SELECT n, count(*) AS groups, sum(total) AS t FROM (SELECT g, count(*) n, sum(x) total FROM s GROUP BY g)
GROUP BY n;

-- nested average
SELECT avg(n) a, max(t) m, stddev(n) s FROM (SELECT g, k, count(*) n, sum(d) t FROM s GROUP BY g, k HAVING
count(*) > 1);

-- top
SELECT g, k, count(*) AS n FROM s GROUP BY g, k ORDER BY n DESC, g, k LIMIT 4;

-- top below
SELECT sum(n) AS s FROM (SELECT g, count(*) AS n FROM s GROUP BY g ORDER BY n DESC, g LIMIT 2);

-- sort dropped
SELECT g, count(*) AS n FROM s GROUP BY g ORDER BY g;

-- union below
SELECT g, count(*) n, sum(v) s FROM (SELECT g, x AS v FROM s UNION ALL SELECT g, y FROM r UNION ALL SELECT
name, id FROM t) GROUP BY g;

-- union above
SELECT g, count(*) n FROM s GROUP BY g UNION ALL SELECT g, sum(y) FROM r GROUP BY g;

-- union distinct above
SELECT g FROM s GROUP BY g UNION SELECT g FROM r GROUP BY g;

-- window function above
SELECT g, n, rank() OVER (ORDER BY n DESC) AS r FROM (SELECT g, count(*) n FROM s GROUP BY g);

-- window function of the groups themselves
SELECT g, sum(x) AS n, lag(g) OVER (ORDER BY g) AS before FROM s GROUP BY g QUALIFY rank() OVER (ORDER BY g DESC) < 4;

-- window function above that only spark knows [spark]
SELECT g, n, size(collect_list(n) OVER (ORDER BY g)) AS r FROM (SELECT g, count(*) n FROM s GROUP BY g);

-- except above
SELECT g FROM (SELECT g, count(*) n FROM s GROUP BY g) EXCEPT SELECT name FROM t;

-- subquery above
SELECT g, n FROM (SELECT g, count(*) n FROM s GROUP BY g) WHERE n > (SELECT avg(id) FROM t);

-- in above
SELECT k, n FROM (SELECT k, count(*) n FROM s GROUP BY k) WHERE k IN (SELECT id FROM t);

-- spark function [spark]
SELECT regexp_replace(g, '[ab]', '<$0>') r, count(*) n FROM s GROUP BY regexp_replace(g, '[ab]', '<$0>');

-- spark function inside [spark]
SELECT k, sum(length(regexp_replace(g, 'a', 'xx'))) n FROM s GROUP BY k;

-- spark aggregate [spark]
SELECT g, percentile(x, 0.5) p, count(*) n FROM s GROUP BY g;

-- non-ascii [spark]
SELECT upper(g) u, lower(g) l, count(*) n FROM s GROUP BY upper(g), lower(g);

-- union of one stream with itself
SELECT g, count(*) n, sum(v) t FROM (SELECT g, x AS v FROM s WHERE x > 0 UNION ALL SELECT g, k FROM s UNION
ALL SELECT g, x FROM s UNION ALL SELECT g, y FROM r) GROUP BY g;

-- filtered distinct of nothing
SELECT g, count(DISTINCT k) FILTER (WHERE x > 1000) a, sum(DISTINCT k) FILTER (WHERE x > 1000) b FROM s GROUP
BY g;

-- global having
SELECT 1 AS one, count(*) AS n FROM s HAVING max(x) > 5;

-- global having of nothing
SELECT count(*) AS n FROM s HAVING max(x) > 5000;

-- join of three
SELECT t.name, a.n, b.m FROM t, (SELECT k, count(*) n FROM s GROUP BY k) a, (SELECT g, max(y) m FROM r GROUP
BY g) b WHERE a.k = t.id AND b.m > a.k;

-- rollup above
SELECT b, sum(n) t FROM (SELECT g, b, count(*) n FROM s GROUP BY g, b) GROUP BY ROLLUP(b);

-- sum of sums
SELECT sum(t) AS t, avg(t) AS a, count(DISTINCT g) AS c FROM (SELECT g, sum(d) AS t FROM s GROUP BY g);

-- text
SELECT concat(g, '-', k) c, trim(g) t, replace(g, 'a', 'A') r, substring(g, 1, 1) u, count(*) n FROM s WHERE
startswith(coalesce(g, ''), 'a') OR g IS NULL GROUP BY ALL;

-- casts
SELECT CAST(x AS STRING) s, CAST(d AS INT) i, CAST(day AS TIMESTAMP) t, CAST(b AS INT) b, count(*) n FROM s
GROUP BY ALL;

-- rounding
SELECT round(d, 1) r, floor(f) f, ceil(d) c, abs(x) a, count(*) n FROM s WHERE f IS NOT NULL AND f < 100 GROUP
BY ALL;

-- in below
SELECT g, count(*) n FROM s WHERE k IN (SELECT id FROM t WHERE w > 0) GROUP BY g;

-- not in below, with a null
SELECT g, count(*) n FROM s WHERE g NOT IN (SELECT name FROM t) GROUP BY g;

-- not in below [query]
SELECT g, count(*) n FROM s WHERE x NOT IN (SELECT id FROM t) AND b GROUP BY g;

-- not in of nothing [query]
SELECT g, count(*) n FROM s WHERE k NOT IN (SELECT id FROM t WHERE id > 100) GROUP BY g;

-- not in, correlated [query]
SELECT g, count(*) n FROM s WHERE x NOT IN (SELECT id FROM t WHERE t.id = s.k OR t.w > s.d) GROUP BY g;

-- in of two columns [query]
SELECT g, count(*) n FROM s WHERE (k, x) NOT IN (SELECT id, id + 1 FROM t) AND (k, k) IN (SELECT id, id FROM t) GROUP BY g;

-- exists below
SELECT g, count(*) n FROM s WHERE EXISTS (SELECT 1 FROM t WHERE t.id = s.k AND t.w < s.d) GROUP BY g;

-- not exists below [query]
SELECT g, count(*) n FROM s WHERE NOT EXISTS (SELECT * FROM t WHERE t.id = s.k AND name IS NOT NULL) GROUP BY g;

-- exists uncorrelated [query]
SELECT g, count(*) n FROM s WHERE EXISTS (SELECT * FROM t WHERE w > 100) OR k > 2 GROUP BY g;

-- exists in an expression [query]
SELECT g, count(*) n FROM s WHERE k = 1 OR EXISTS (SELECT * FROM t WHERE t.id = s.k AND w > 1) GROUP BY g;

-- scalar below [query]
SELECT g, count(*) n, max(x + (SELECT min(id) FROM t)) m FROM s WHERE d > (SELECT avg(w) FROM t) GROUP BY g;

-- scalar of one row [query]
SELECT g, count(*) n FROM s WHERE k > (SELECT id FROM t WHERE name = 'one') GROUP BY g;

-- scalar of no row [query]
SELECT g, count(*) n FROM s WHERE k > (SELECT id FROM t WHERE name = 'none') OR k = 1 GROUP BY g;

-- scalar of too many rows
SELECT g, count(*) n FROM s WHERE k > (SELECT id FROM t) GROUP BY g;

-- correlated aggregate below [query]
SELECT g, count(*) n FROM s WHERE d > (SELECT sum(w) + 1 FROM t WHERE t.id = s.k) GROUP BY g;

-- correlated count below
SELECT g, count(*) n FROM s WHERE (SELECT count(*) FROM t WHERE t.id = s.k) < 1 GROUP BY g;

-- subqueries of groups [query]
SELECT g, n, (SELECT max(w) FROM t WHERE t.id = q.n) AS m, (SELECT count(name) FROM t) AS c
FROM (SELECT g, count(*) n FROM s GROUP BY g) q WHERE n > 100 OR NOT EXISTS (SELECT 1 FROM t WHERE id = n);

-- subquery in having [query]
SELECT k, count(*) n, (SELECT sum(id) FROM t) AS z FROM s GROUP BY k HAVING count(*) > (SELECT min(id) FROM t) AND k IN (SELECT id FROM t)
AND NOT EXISTS (SELECT 1 FROM t WHERE t.id = k AND t.w > 1);

-- subquery over the stream itself [query]
SELECT g, n FROM (SELECT g, count(*) n FROM s GROUP BY g) WHERE n >= (SELECT avg(m) FROM (SELECT k, count(*) m FROM s GROUP BY k));

-- table against a stream, exists
SELECT name FROM t WHERE EXISTS (SELECT * FROM s WHERE s.k = t.id AND s.x > 3);

-- table against a stream, not in [query]
SELECT id FROM t WHERE id NOT IN (SELECT k FROM s WHERE k IS NOT NULL AND x > 40);

-- table against a stream, correlated [query]
SELECT id, (SELECT sum(x) FROM s WHERE s.k = t.id) AS total, (SELECT count(*) FROM s WHERE s.k = t.id) AS n FROM t;

-- rollup
SELECT g, b, grouping(g) AS gg, grouping_id() AS id, count(*) n, sum(x) t, avg(d) a, stddev(x) v, count(DISTINCT k) c
FROM s GROUP BY ROLLUP (g, b);

-- cube [query]
SELECT g, b, k % 2 AS m, count(*) n, max(x) t FROM s GROUP BY CUBE (g, b, k % 2) HAVING count(*) > 2 AND grouping(g) = 0;

-- with rollup [query]
SELECT g, grouping(b), grouping_id(g, b), min(x) FROM s GROUP BY g, b WITH ROLLUP;

-- grouping sets [query]
SELECT g, k, sum(k) AS t, count(*) n, grouping_id() AS id FROM s GROUP BY GROUPING SETS ((g, k), g, (), (g)) ORDER BY id, g, k LIMIT 8;

-- a key and a rollup [query]
SELECT b, g, k, count(*) n FROM s JOIN t ON s.k = t.id GROUP BY b, ROLLUP (g, k);

-- rollup of nothing [query]
SELECT g, count(*) n FROM s WHERE x > 1000 GROUP BY ROLLUP (g);

-- intersect of streams [query]
SELECT g FROM s INTERSECT SELECT g FROM r;

-- except of streams [query]
SELECT g FROM s EXCEPT SELECT g FROM r;

-- except all above
SELECT g FROM (SELECT g, k FROM s GROUP BY g, k) EXCEPT ALL SELECT g FROM (SELECT g, y FROM r GROUP BY g, y);

-- intersect all above [query]
SELECT g FROM (SELECT g, k FROM s GROUP BY g, k) INTERSECT ALL SELECT g FROM (SELECT g, y FROM r GROUP BY g, y);

-- using in a right join [query]
SELECT * FROM (SELECT count(*) n, k AS id FROM s GROUP BY k) RIGHT JOIN t USING (id);

-- using in a full join
SELECT * FROM (SELECT count(*) n, k AS id FROM s GROUP BY k) a FULL JOIN t USING (id);

-- using twice [query]
SELECT * FROM (SELECT count(*) n, g FROM s GROUP BY g) a JOIN (SELECT max(y) m, g FROM r GROUP BY g) b USING (g) LEFT JOIN (SELECT max(x) z, g FROM s GROUP BY g) c USING (g);

-- right join below [query]
SELECT t.name, count(*) n FROM t RIGHT JOIN s ON s.k = t.id AND t.w > 0 GROUP BY t.name;

-- cross join below [query]
SELECT t.name, count(*) n, sum(x + id) z FROM s CROSS JOIN t GROUP BY t.name;

-- theta left join below [query]
SELECT t.id, count(*) n FROM s LEFT JOIN t ON s.x > t.id AND s.d < t.w GROUP BY t.id;

-- grouped streams, right [query]
SELECT a.g, a.n, b.m FROM (SELECT g, count(*) n FROM s GROUP BY g) a RIGHT JOIN (SELECT g, sum(y) m FROM r GROUP BY g) b ON a.g = b.g AND a.n > b.m;

-- grouped streams, semi and anti [query]
SELECT a.g, a.n FROM (SELECT g, count(*) n FROM s GROUP BY g) a LEFT SEMI JOIN (SELECT g, sum(y) m FROM r GROUP BY g) b ON a.g = b.g
LEFT ANTI JOIN (SELECT g, max(x) m FROM s GROUP BY g) c ON a.n = c.m;

-- grouped streams, theta [query]
SELECT a.g, b.g AS h FROM (SELECT g, count(*) n FROM s GROUP BY g) a FULL JOIN (SELECT g, sum(y) m FROM r GROUP BY g) b ON a.n < b.m;

-- sliding windows [query]
SELECT window.start AS a, window.end AS e, g, count(*) n, sum(x) t FROM s GROUP BY window(ts, '6 hours', '2 hours'), g;

-- sliding windows, uneven
SELECT window.start AS a, count(*) n FROM s GROUP BY window(ts, '5 hours', '2 hours') HAVING count(*) > 3;

-- windows with an offset [query]
SELECT window.start AS a, window.end AS e, count(*) n FROM s GROUP BY window(ts, '6 hours', '6 hours', '45 minutes');

-- struct fields
SELECT p.name, p.geo.x AS x, count(*) AS n, count(p.geo) AS g, sum(p.geo.y) AS y, max(p.at) AS at, count(DISTINCT p.at) d
FROM j WHERE p.geo.x >= 0 OR p.geo IS NULL GROUP BY p.name, p.geo.x;

-- groups of nested values
SELECT p, tags, items, count(*) AS n, min(id) AS m FROM j GROUP BY p, tags, items;

-- nested values counted [query]
SELECT id, count(p) a, count(w) b, count(DISTINCT tags) c, count(DISTINCT p, items) d, count(*) FILTER (WHERE p IS NULL) e
FROM j GROUP BY id;

-- nested values carried [query]
SELECT q.*, u.spec, u.spec.kind AS kind, u.spec.dims FROM (SELECT id, count(*) AS n FROM j GROUP BY id) q
LEFT JOIN u ON q.id = u.id;

-- nested build side [query]
SELECT u.spec.kind AS k, u.spec, sum(j.p.geo.x) AS x, count(*) AS n FROM j LEFT JOIN u ON j.id = u.id GROUP BY ALL;

-- functions of nested values [spark]
SELECT size(items) AS s, coalesce(tags, items.sku) AS t, array_contains(w, 0.5D) AS h, sum(get(items, 1).qty) AS q,
count(*) AS n, max(tags) AS m FROM j
WHERE tags <> array('x') OR p.geo <=> named_struct('x', 1, 'y', 0.25BD) GROUP BY ALL;

-- nested values exploded above [spark]
SELECT e, sum(n) AS n, max(named_struct('n', n, 'e', e)) AS m
FROM (SELECT tags, count(*) AS n FROM j GROUP BY tags) LATERAL VIEW explode(tags) x AS e GROUP BY e;

-- aggregates of constants alone [spark]
SELECT sum(NULL) AS a, sum(DISTINCT NULL) AS b, count(NULL) AS c, percentile(1, 0.5) AS d, size(collect_list(1)) AS e,
max_by(1, 2) AS f, median(3) AS g, sum(2) AS h, count(DISTINCT 1) AS i FROM s;

-- aggregates of constants alone, in groups [spark]
SELECT k, sum(NULL) AS a, sum(DISTINCT NULL) AS b, first(NULL) AS c, size(collect_list(1)) AS d, mode(1) AS e FROM s GROUP BY k;

-- structs with fields named by place [spark]
SELECT k, struct((k), count(*), sum(x) + 1, 7) AS st, max(struct(x, k)) AS m FROM s GROUP BY k;
