-- Queries that are moved after each of their stages. First those of TPC-H that tests/tpch.sql leaves out, then one for
-- each kind of operator. `sales` is partitioned by day; `days`, `facts` and `events` are Parquet, CSV and JSON.

-- q2
SELECT s_acctbal, s_name, n_name, p_partkey, p_mfgr, s_address, s_phone, s_comment
FROM part, supplier, partsupp, nation, region
WHERE p_partkey = ps_partkey AND s_suppkey = ps_suppkey AND p_size = 15 AND p_type LIKE '%BRASS'
  AND s_nationkey = n_nationkey AND n_regionkey = r_regionkey AND r_name = 'EUROPE'
  AND ps_supplycost = (SELECT min(ps_supplycost) FROM partsupp, supplier, nation, region
                       WHERE p_partkey = ps_partkey AND s_suppkey = ps_suppkey AND s_nationkey = n_nationkey
                         AND n_regionkey = r_regionkey AND r_name = 'EUROPE')
ORDER BY s_acctbal DESC, n_name, s_name, p_partkey LIMIT 100;
-- q11
SELECT ps_partkey, sum(ps_supplycost * ps_availqty) AS value
FROM partsupp, supplier, nation
WHERE ps_suppkey = s_suppkey AND s_nationkey = n_nationkey AND n_name = 'GERMANY'
GROUP BY ps_partkey
HAVING sum(ps_supplycost * ps_availqty) > (SELECT sum(ps_supplycost * ps_availqty) * 0.0001 * 100
                                           FROM partsupp, supplier, nation
                                           WHERE ps_suppkey = s_suppkey AND s_nationkey = n_nationkey
                                             AND n_name = 'GERMANY')
ORDER BY value DESC, ps_partkey;
-- q13
SELECT c_count, count(*) AS custdist
FROM (SELECT c_custkey, count(o_orderkey) AS c_count
      FROM customer LEFT OUTER JOIN orders ON c_custkey = o_custkey AND o_comment NOT LIKE '%special%requests%'
      GROUP BY c_custkey) AS c_orders
GROUP BY c_count ORDER BY custdist DESC, c_count DESC;
-- q16
SELECT p_brand, p_type, p_size, count(DISTINCT ps_suppkey) AS supplier_cnt
FROM partsupp, part
WHERE p_partkey = ps_partkey AND p_brand <> 'Brand#45' AND p_type NOT LIKE 'MEDIUM POLISHED%'
  AND p_size IN (49, 14, 23, 45, 19, 3, 36, 9)
  AND ps_suppkey NOT IN (SELECT s_suppkey FROM supplier WHERE s_comment LIKE '%Customer%Complaints%')
GROUP BY p_brand, p_type, p_size
ORDER BY supplier_cnt DESC, p_brand, p_type, p_size;
-- q17
SELECT sum(l_extendedprice) / 7.0 AS avg_yearly
FROM lineitem, part
WHERE p_partkey = l_partkey AND p_brand = 'Brand#23' AND p_container = 'MED BOX'
  AND l_quantity < (SELECT 0.2 * avg(l_quantity) FROM lineitem WHERE l_partkey = p_partkey);
-- q18
SELECT c_name, c_custkey, o_orderkey, o_orderdate, o_totalprice, sum(l_quantity) AS quantity
FROM customer, orders, lineitem
WHERE o_orderkey IN (SELECT l_orderkey FROM lineitem GROUP BY l_orderkey HAVING sum(l_quantity) > 250)
  AND c_custkey = o_custkey AND o_orderkey = l_orderkey
GROUP BY c_name, c_custkey, o_orderkey, o_orderdate, o_totalprice
ORDER BY o_totalprice DESC, o_orderdate, o_orderkey LIMIT 100;
-- q21
SELECT s_name, count(*) AS numwait
FROM supplier, lineitem l1, orders, nation
WHERE s_suppkey = l1.l_suppkey AND o_orderkey = l1.l_orderkey AND o_orderstatus = 'F'
  AND l1.l_receiptdate > l1.l_commitdate
  AND EXISTS (SELECT * FROM lineitem l2 WHERE l2.l_orderkey = l1.l_orderkey AND l2.l_suppkey <> l1.l_suppkey)
  AND NOT EXISTS (SELECT * FROM lineitem l3
                  WHERE l3.l_orderkey = l1.l_orderkey AND l3.l_suppkey <> l1.l_suppkey
                    AND l3.l_receiptdate > l3.l_commitdate)
  AND s_nationkey = n_nationkey AND n_name = 'SAUDI ARABIA'
GROUP BY s_name ORDER BY numwait DESC, s_name LIMIT 100;
-- q22
SELECT cntrycode, count(*) AS numcust, sum(c_acctbal) AS totacctbal
FROM (SELECT substring(c_phone, 1, 2) AS cntrycode, c_acctbal FROM customer
      WHERE substring(c_phone, 1, 2) IN ('13', '31', '23', '29', '30', '18', '17')
        AND c_acctbal > (SELECT avg(c_acctbal) FROM customer
                         WHERE c_acctbal > 0.00
                           AND substring(c_phone, 1, 2) IN ('13', '31', '23', '29', '30', '18', '17'))
        AND NOT EXISTS (SELECT * FROM orders WHERE o_custkey = c_custkey)) AS custsale
GROUP BY cntrycode ORDER BY cntrycode;
-- pruned
SELECT d.week, sum(s.amount) AS amount, count(*) AS n FROM sales s JOIN days d ON s.day = d.day
WHERE d.week IN (1, 3) GROUP BY d.week ORDER BY d.week;
-- pruned_twice
SELECT x.week, x.amount, y.amount AS other
FROM (SELECT d.week, sum(s.amount) AS amount FROM sales s JOIN days d ON s.day = d.day WHERE d.week < 3 GROUP BY 1) x
FULL OUTER JOIN (SELECT d.week, max(s.amount) AS amount FROM sales s JOIN days d ON s.day = d.day WHERE d.week > 1 GROUP BY 1) y
ON x.week = y.week ORDER BY coalesce(x.week, y.week);
-- reused
WITH totals AS (SELECT item, sum(amount) AS amount FROM sales GROUP BY item)
SELECT a.item, a.amount - b.amount AS less FROM totals a JOIN totals b ON a.item = b.item + 1 ORDER BY a.item;
-- united
SELECT kind, count(*) AS n, sum(v) AS v
FROM (SELECT 'sale' AS kind, amount AS v FROM sales UNION ALL SELECT 'fact', value FROM facts
      UNION ALL SELECT DISTINCT 'event', size FROM events) GROUP BY kind ORDER BY kind;
-- windowed
SELECT item, day, amount, rank() OVER (PARTITION BY item ORDER BY amount DESC, day, id) AS place,
       sum(amount) OVER (PARTITION BY day) AS of_day
FROM sales ORDER BY item, place LIMIT 40;
-- repartitioned
SELECT item, day, sum(n) OVER (PARTITION BY item ORDER BY day) AS so_far
FROM (SELECT /*+ REPARTITION(8) */ item, day, count(*) AS n FROM sales GROUP BY item, day) ORDER BY item, day;
-- rolled
SELECT item % 3 AS kind, day, sum(amount) AS amount, grouping_id() AS level FROM sales
GROUP BY ROLLUP (item % 3, day) ORDER BY level, kind NULLS LAST, day NULLS LAST;
-- anti
SELECT count(*) AS n FROM facts WHERE id NOT IN (SELECT item FROM events WHERE item IS NOT NULL);
-- crossed
SELECT count(*) AS n, max(s.amount) AS most FROM sales s CROSS JOIN (SELECT 1 FROM facts WHERE id < 4) t;
-- ranged
SELECT d.week, count(*) AS n FROM facts f JOIN days d ON f.value BETWEEN d.day AND d.day + 2 GROUP BY d.week ORDER BY 1;
-- collected
SELECT item % 2 AS odd, sort_array(collect_set(day)) AS days, percentile(amount, 0.5) AS middle,
       count(DISTINCT item) AS items, count(DISTINCT day) AS n
FROM sales GROUP BY item % 2 ORDER BY odd;
-- exploded
SELECT word, count(*) AS n, min(at) AS first FROM (SELECT explode(split(words, ' ')) AS word, at FROM events)
GROUP BY word ORDER BY n DESC, word;
-- nested
SELECT week, (SELECT max(value) FROM facts WHERE id > (SELECT avg(item) FROM events)) AS m, sum(amount) AS amount
FROM sales JOIN days USING (day) WHERE amount > (SELECT avg(amount) FROM sales WHERE item = (SELECT min(item) FROM sales))
GROUP BY week ORDER BY week;
-- limited
SELECT week, count(*) AS n FROM (SELECT day FROM sales ORDER BY id LIMIT 200) JOIN days USING (day)
GROUP BY week ORDER BY week;
-- inline
SELECT v.name, sum(s.amount) AS amount FROM sales s JOIN (VALUES (1, 'one'), (2, 'two'), (2, 'zwei')) AS v(item, name)
ON s.item = v.item GROUP BY v.name ORDER BY 1;
-- emptied
SELECT s.day, count(*) AS n FROM sales s JOIN facts f ON s.id = f.id JOIN days d ON d.day = s.day
WHERE f.value < -5 GROUP BY s.day ORDER BY 1;
-- outer
SELECT f.id, e.size, s.amount FROM facts f LEFT JOIN events e ON f.id = e.item LEFT JOIN sales s ON s.id = f.id AND s.day < 4
WHERE f.id % 7 < 3 ORDER BY f.id, e.size, s.amount;

-- assorted
SELECT /*+ SHUFFLE_REPLICATE_NL(longest) */ by_word.word, sizes, third, phrase, weight
FROM (SELECT word, sort_array(collect_set(size)) AS sizes
      FROM (SELECT explode(split(words, ' ')) AS word, size FROM events) GROUP BY word) by_word
JOIN (SELECT item % 3 AS third, max(words) AS phrase FROM events GROUP BY item % 3) longest
JOIN VALUES ('red', 1), ('fox', 2) AS weights (word, weight) ON by_word.word = weights.word
ORDER BY by_word.word, third;
