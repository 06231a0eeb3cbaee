-- TPC-DS's 99 queries in Spark's SQL; 14, 23, 24 and 39 have two parts. The values put in, and two thresholds that go
-- with larger data (in 8 and 23), are chosen for SF 0.01, where 24, 31, 54, 58 and 83 to 85 find nothing all the same.
-- After the order each query asks for come further columns where it leaves ties, so that the answer is defined.

-- q1
WITH customer_total_return AS (
    SELECT sr_customer_sk AS ctr_customer_sk, sr_store_sk AS ctr_store_sk, sum(sr_return_amt) AS ctr_total_return
    FROM store_returns, date_dim
    WHERE sr_returned_date_sk = d_date_sk AND d_year = 2000
    GROUP BY sr_customer_sk, sr_store_sk)
SELECT c_customer_id
FROM customer_total_return ctr1, store, customer
WHERE ctr1.ctr_total_return > (SELECT avg(ctr_total_return) * 1.2 FROM customer_total_return ctr2
                               WHERE ctr1.ctr_store_sk = ctr2.ctr_store_sk)
  AND s_store_sk = ctr1.ctr_store_sk AND s_state = 'TN' AND ctr1.ctr_customer_sk = c_customer_sk
ORDER BY c_customer_id LIMIT 100;

-- q2
WITH both_channels AS (
    SELECT ws_sold_date_sk AS sold_date_sk, ws_ext_sales_price AS sales_price FROM web_sales
    UNION ALL
    SELECT cs_sold_date_sk, cs_ext_sales_price FROM catalog_sales),
weeks AS (
    SELECT d_week_seq,
           sum(CASE WHEN d_day_name = 'Sunday' THEN sales_price END) AS sun_sales,
           sum(CASE WHEN d_day_name = 'Monday' THEN sales_price END) AS mon_sales,
           sum(CASE WHEN d_day_name = 'Tuesday' THEN sales_price END) AS tue_sales,
           sum(CASE WHEN d_day_name = 'Wednesday' THEN sales_price END) AS wed_sales,
           sum(CASE WHEN d_day_name = 'Thursday' THEN sales_price END) AS thu_sales,
           sum(CASE WHEN d_day_name = 'Friday' THEN sales_price END) AS fri_sales,
           sum(CASE WHEN d_day_name = 'Saturday' THEN sales_price END) AS sat_sales
    FROM both_channels, date_dim WHERE d_date_sk = sold_date_sk GROUP BY d_week_seq)
SELECT y.d_week_seq, round(y.sun_sales / z.sun_sales, 2), round(y.mon_sales / z.mon_sales, 2),
       round(y.tue_sales / z.tue_sales, 2), round(y.wed_sales / z.wed_sales, 2), round(y.thu_sales / z.thu_sales, 2),
       round(y.fri_sales / z.fri_sales, 2), round(y.sat_sales / z.sat_sales, 2)
FROM (SELECT weeks.* FROM weeks, date_dim WHERE date_dim.d_week_seq = weeks.d_week_seq AND d_year = 2001) y,
     (SELECT weeks.* FROM weeks, date_dim WHERE date_dim.d_week_seq = weeks.d_week_seq AND d_year = 2002) z
WHERE y.d_week_seq = z.d_week_seq - 53
ORDER BY y.d_week_seq;

-- q3
SELECT d_year, i_brand_id AS brand_id, i_brand AS brand, sum(ss_ext_sales_price) AS sum_agg
FROM date_dim, store_sales, item
WHERE d_date_sk = ss_sold_date_sk AND ss_item_sk = i_item_sk AND i_manufact_id = 128 AND d_moy = 11
GROUP BY d_year, i_brand, i_brand_id
ORDER BY d_year, sum_agg DESC, brand_id, brand LIMIT 100;

-- q4
WITH year_total AS (
    SELECT c_customer_id AS customer_id, c_first_name AS first_name, c_last_name AS last_name,
           c_preferred_cust_flag AS preferred, c_birth_country, c_login, c_email_address, d_year AS dyear,
           sum((ss_ext_list_price - ss_ext_wholesale_cost - ss_ext_discount_amt + ss_ext_sales_price) / 2)
             AS year_total,
           's' AS sale_type
    FROM customer, store_sales, date_dim
    WHERE c_customer_sk = ss_customer_sk AND ss_sold_date_sk = d_date_sk
    GROUP BY c_customer_id, c_first_name, c_last_name, c_preferred_cust_flag, c_birth_country, c_login,
             c_email_address, d_year
    UNION ALL
    SELECT c_customer_id, c_first_name, c_last_name, c_preferred_cust_flag, c_birth_country, c_login, c_email_address,
           d_year, sum((cs_ext_list_price - cs_ext_wholesale_cost - cs_ext_discount_amt + cs_ext_sales_price) / 2), 'c'
    FROM customer, catalog_sales, date_dim
    WHERE c_customer_sk = cs_bill_customer_sk AND cs_sold_date_sk = d_date_sk
    GROUP BY c_customer_id, c_first_name, c_last_name, c_preferred_cust_flag, c_birth_country, c_login,
             c_email_address, d_year
    UNION ALL
    SELECT c_customer_id, c_first_name, c_last_name, c_preferred_cust_flag, c_birth_country, c_login, c_email_address,
           d_year, sum((ws_ext_list_price - ws_ext_wholesale_cost - ws_ext_discount_amt + ws_ext_sales_price) / 2), 'w'
    FROM customer, web_sales, date_dim
    WHERE c_customer_sk = ws_bill_customer_sk AND ws_sold_date_sk = d_date_sk
    GROUP BY c_customer_id, c_first_name, c_last_name, c_preferred_cust_flag, c_birth_country, c_login,
             c_email_address, d_year)
SELECT s2.customer_id, s2.first_name, s2.last_name, s2.preferred
FROM year_total s1, year_total s2, year_total c1, year_total c2, year_total w1, year_total w2
WHERE s2.customer_id = s1.customer_id AND s1.customer_id = c2.customer_id AND s1.customer_id = c1.customer_id
  AND s1.customer_id = w1.customer_id AND s1.customer_id = w2.customer_id
  AND s1.sale_type = 's' AND c1.sale_type = 'c' AND w1.sale_type = 'w'
  AND s2.sale_type = 's' AND c2.sale_type = 'c' AND w2.sale_type = 'w'
  AND s1.dyear = 2001 AND s2.dyear = 2002 AND c1.dyear = 2001 AND c2.dyear = 2002
  AND w1.dyear = 2001 AND w2.dyear = 2002
  AND s1.year_total > 0 AND c1.year_total > 0 AND w1.year_total > 0
  AND CASE WHEN c1.year_total > 0 THEN c2.year_total / c1.year_total END
      > CASE WHEN s1.year_total > 0 THEN s2.year_total / s1.year_total END
  AND CASE WHEN c1.year_total > 0 THEN c2.year_total / c1.year_total END
      > CASE WHEN w1.year_total > 0 THEN w2.year_total / w1.year_total END
ORDER BY s2.customer_id, s2.first_name, s2.last_name, s2.preferred LIMIT 100;

-- q5
WITH ssr AS (
    SELECT s_store_id, sum(sales_price) AS sales, sum(profit) AS profit, sum(return_amt) AS returns,
           sum(net_loss) AS profit_loss
    FROM (SELECT ss_store_sk AS store_sk, ss_sold_date_sk AS date_sk, ss_ext_sales_price AS sales_price,
                 ss_net_profit AS profit, CAST(0 AS DECIMAL(7, 2)) AS return_amt, CAST(0 AS DECIMAL(7, 2)) AS net_loss
          FROM store_sales
          UNION ALL
          SELECT sr_store_sk, sr_returned_date_sk, CAST(0 AS DECIMAL(7, 2)), CAST(0 AS DECIMAL(7, 2)), sr_return_amt,
                 sr_net_loss
          FROM store_returns) AS salesreturns, date_dim, store
    WHERE date_sk = d_date_sk AND d_date BETWEEN DATE '2000-08-23' AND DATE '2000-08-23' + INTERVAL '14' DAY
      AND store_sk = s_store_sk
    GROUP BY s_store_id),
csr AS (
    SELECT cp_catalog_page_id, sum(sales_price) AS sales, sum(profit) AS profit, sum(return_amt) AS returns,
           sum(net_loss) AS profit_loss
    FROM (SELECT cs_catalog_page_sk AS page_sk, cs_sold_date_sk AS date_sk, cs_ext_sales_price AS sales_price,
                 cs_net_profit AS profit, CAST(0 AS DECIMAL(7, 2)) AS return_amt, CAST(0 AS DECIMAL(7, 2)) AS net_loss
          FROM catalog_sales
          UNION ALL
          SELECT cr_catalog_page_sk, cr_returned_date_sk, CAST(0 AS DECIMAL(7, 2)), CAST(0 AS DECIMAL(7, 2)),
                 cr_return_amount, cr_net_loss
          FROM catalog_returns) AS salesreturns, date_dim, catalog_page
    WHERE date_sk = d_date_sk AND d_date BETWEEN DATE '2000-08-23' AND DATE '2000-08-23' + INTERVAL '14' DAY
      AND page_sk = cp_catalog_page_sk
    GROUP BY cp_catalog_page_id),
wsr AS (
    SELECT web_site_id, sum(sales_price) AS sales, sum(profit) AS profit, sum(return_amt) AS returns,
           sum(net_loss) AS profit_loss
    FROM (SELECT ws_web_site_sk AS site_sk, ws_sold_date_sk AS date_sk, ws_ext_sales_price AS sales_price,
                 ws_net_profit AS profit, CAST(0 AS DECIMAL(7, 2)) AS return_amt, CAST(0 AS DECIMAL(7, 2)) AS net_loss
          FROM web_sales
          UNION ALL
          SELECT ws_web_site_sk, wr_returned_date_sk, CAST(0 AS DECIMAL(7, 2)), CAST(0 AS DECIMAL(7, 2)), wr_return_amt,
                 wr_net_loss
          FROM web_returns LEFT OUTER JOIN web_sales
               ON wr_item_sk = ws_item_sk AND wr_order_number = ws_order_number) AS salesreturns, date_dim, web_site
    WHERE date_sk = d_date_sk AND d_date BETWEEN DATE '2000-08-23' AND DATE '2000-08-23' + INTERVAL '14' DAY
      AND site_sk = web_site_sk
    GROUP BY web_site_id)
SELECT channel, id, sum(sales) AS sales, sum(returns) AS returns, sum(profit) AS profit
FROM (SELECT 'store channel' AS channel, concat('store', s_store_id) AS id, sales, returns,
             profit - profit_loss AS profit
      FROM ssr
      UNION ALL
      SELECT 'catalog channel', concat('catalog_page', cp_catalog_page_id), sales, returns, profit - profit_loss
      FROM csr
      UNION ALL
      SELECT 'web channel', concat('web_site', web_site_id), sales, returns, profit - profit_loss FROM wsr) x
GROUP BY ROLLUP (channel, id)
ORDER BY channel, id LIMIT 100;

-- q6
SELECT a.ca_state AS state, count(*) AS cnt
FROM customer_address a, customer c, store_sales s, date_dim d, item i
WHERE a.ca_address_sk = c.c_current_addr_sk AND c.c_customer_sk = s.ss_customer_sk AND s.ss_sold_date_sk = d.d_date_sk
  AND s.ss_item_sk = i.i_item_sk
  AND d.d_month_seq = (SELECT DISTINCT d_month_seq FROM date_dim WHERE d_year = 2001 AND d_moy = 1)
  AND i.i_current_price > 1.2 * (SELECT avg(j.i_current_price) FROM item j WHERE j.i_category = i.i_category)
GROUP BY a.ca_state HAVING count(*) >= 10
ORDER BY cnt, a.ca_state LIMIT 100;

-- q7
SELECT i_item_id, avg(ss_quantity) AS agg1, avg(ss_list_price) AS agg2, avg(ss_coupon_amt) AS agg3,
       avg(ss_sales_price) AS agg4
FROM store_sales, customer_demographics, date_dim, item, promotion
WHERE ss_sold_date_sk = d_date_sk AND ss_item_sk = i_item_sk AND ss_cdemo_sk = cd_demo_sk AND ss_promo_sk = p_promo_sk
  AND cd_gender = 'M' AND cd_marital_status = 'S' AND cd_education_status = 'College'
  AND (p_channel_email = 'N' OR p_channel_event = 'N') AND d_year = 2000
GROUP BY i_item_id
ORDER BY i_item_id LIMIT 100;

-- q8
SELECT s_store_name, sum(ss_net_profit) AS profit
FROM store_sales, date_dim, store,
     (SELECT ca_zip
      FROM (SELECT substring(ca_zip, 1, 5) AS ca_zip FROM customer_address
            WHERE substring(ca_zip, 1, 5) IN ('34136', '30399', '36060', '55124', '56971', '43951', '49275', '28222',
                                               '30411', '31669', '31289', '31711', '77838', '71757', '67752', '40399')
            INTERSECT
            SELECT ca_zip
            FROM (SELECT substring(ca_zip, 1, 5) AS ca_zip, count(*) AS cnt FROM customer_address, customer
                  WHERE ca_address_sk = c_current_addr_sk AND c_preferred_cust_flag = 'Y'
                  GROUP BY ca_zip HAVING count(*) > 1) a1) a2) v1
WHERE ss_store_sk = s_store_sk AND ss_sold_date_sk = d_date_sk AND d_qoy = 2 AND d_year = 1998
  AND substring(s_zip, 1, 2) = substring(v1.ca_zip, 1, 2)
GROUP BY s_store_name
ORDER BY s_store_name LIMIT 100;

-- q9
SELECT CASE WHEN (SELECT count(*) FROM store_sales WHERE ss_quantity BETWEEN 1 AND 20) > 7000
            THEN (SELECT avg(ss_ext_discount_amt) FROM store_sales WHERE ss_quantity BETWEEN 1 AND 20)
            ELSE (SELECT avg(ss_net_paid) FROM store_sales WHERE ss_quantity BETWEEN 1 AND 20) END AS bucket1,
       CASE WHEN (SELECT count(*) FROM store_sales WHERE ss_quantity BETWEEN 21 AND 40) > 1000
            THEN (SELECT avg(ss_ext_discount_amt) FROM store_sales WHERE ss_quantity BETWEEN 21 AND 40)
            ELSE (SELECT avg(ss_net_paid) FROM store_sales WHERE ss_quantity BETWEEN 21 AND 40) END AS bucket2,
       CASE WHEN (SELECT count(*) FROM store_sales WHERE ss_quantity BETWEEN 41 AND 60) > 6000
            THEN (SELECT avg(ss_ext_discount_amt) FROM store_sales WHERE ss_quantity BETWEEN 41 AND 60)
            ELSE (SELECT avg(ss_net_paid) FROM store_sales WHERE ss_quantity BETWEEN 41 AND 60) END AS bucket3,
       CASE WHEN (SELECT count(*) FROM store_sales WHERE ss_quantity BETWEEN 61 AND 80) > 3000
            THEN (SELECT avg(ss_ext_discount_amt) FROM store_sales WHERE ss_quantity BETWEEN 61 AND 80)
            ELSE (SELECT avg(ss_net_paid) FROM store_sales WHERE ss_quantity BETWEEN 61 AND 80) END AS bucket4,
       CASE WHEN (SELECT count(*) FROM store_sales WHERE ss_quantity BETWEEN 81 AND 100) > 4000
            THEN (SELECT avg(ss_ext_discount_amt) FROM store_sales WHERE ss_quantity BETWEEN 81 AND 100)
            ELSE (SELECT avg(ss_net_paid) FROM store_sales WHERE ss_quantity BETWEEN 81 AND 100) END AS bucket5
FROM reason WHERE r_reason_sk = 1;

-- q10
SELECT cd_gender, cd_marital_status, cd_education_status, count(*) AS cnt1, cd_purchase_estimate, count(*) AS cnt2,
       cd_credit_rating, count(*) AS cnt3, cd_dep_count, count(*) AS cnt4, cd_dep_employed_count, count(*) AS cnt5,
       cd_dep_college_count, count(*) AS cnt6
FROM customer c, customer_address ca, customer_demographics
WHERE c.c_current_addr_sk = ca.ca_address_sk AND cd_demo_sk = c.c_current_cdemo_sk
  AND ca_county IN ('Williamson County', 'Walker County', 'Ziebach County', 'Richland County', 'Jackson County')
  AND EXISTS (SELECT * FROM store_sales, date_dim
              WHERE c.c_customer_sk = ss_customer_sk AND ss_sold_date_sk = d_date_sk AND d_year = 2002
                AND d_moy BETWEEN 1 AND 4)
  AND (EXISTS (SELECT * FROM web_sales, date_dim
               WHERE c.c_customer_sk = ws_bill_customer_sk AND ws_sold_date_sk = d_date_sk AND d_year = 2002
                 AND d_moy BETWEEN 1 AND 4)
       OR EXISTS (SELECT * FROM catalog_sales, date_dim
                  WHERE c.c_customer_sk = cs_ship_customer_sk AND cs_sold_date_sk = d_date_sk AND d_year = 2002
                    AND d_moy BETWEEN 1 AND 4))
GROUP BY cd_gender, cd_marital_status, cd_education_status, cd_purchase_estimate, cd_credit_rating, cd_dep_count,
         cd_dep_employed_count, cd_dep_college_count
ORDER BY cd_gender, cd_marital_status, cd_education_status, cd_purchase_estimate, cd_credit_rating, cd_dep_count,
         cd_dep_employed_count, cd_dep_college_count LIMIT 100;

-- q11
WITH year_total AS (
    SELECT c_customer_id AS customer_id, c_first_name AS first_name, c_last_name AS last_name,
           c_preferred_cust_flag AS preferred, c_birth_country, c_login, c_email_address, d_year AS dyear,
           sum(ss_ext_list_price - ss_ext_discount_amt) AS year_total, 's' AS sale_type
    FROM customer, store_sales, date_dim
    WHERE c_customer_sk = ss_customer_sk AND ss_sold_date_sk = d_date_sk
    GROUP BY c_customer_id, c_first_name, c_last_name, c_preferred_cust_flag, c_birth_country, c_login,
             c_email_address, d_year
    UNION ALL
    SELECT c_customer_id, c_first_name, c_last_name, c_preferred_cust_flag, c_birth_country, c_login, c_email_address,
           d_year, sum(ws_ext_list_price - ws_ext_discount_amt), 'w'
    FROM customer, web_sales, date_dim
    WHERE c_customer_sk = ws_bill_customer_sk AND ws_sold_date_sk = d_date_sk
    GROUP BY c_customer_id, c_first_name, c_last_name, c_preferred_cust_flag, c_birth_country, c_login,
             c_email_address, d_year)
SELECT s2.customer_id, s2.first_name, s2.last_name, s2.preferred
FROM year_total s1, year_total s2, year_total w1, year_total w2
WHERE s2.customer_id = s1.customer_id AND s1.customer_id = w1.customer_id AND s1.customer_id = w2.customer_id
  AND s1.sale_type = 's' AND w1.sale_type = 'w' AND s2.sale_type = 's' AND w2.sale_type = 'w'
  AND s1.dyear = 2001 AND s2.dyear = 2002 AND w1.dyear = 2001 AND w2.dyear = 2002
  AND s1.year_total > 0 AND w1.year_total > 0
  AND CASE WHEN w1.year_total > 0 THEN w2.year_total / w1.year_total ELSE 0.0 END
      > CASE WHEN s1.year_total > 0 THEN s2.year_total / s1.year_total ELSE 0.0 END
ORDER BY s2.customer_id, s2.first_name, s2.last_name, s2.preferred LIMIT 100;

-- q12
SELECT i_item_id, i_item_desc, i_category, i_class, i_current_price, sum(ws_ext_sales_price) AS itemrevenue,
       sum(ws_ext_sales_price) * 100 / sum(sum(ws_ext_sales_price)) OVER (PARTITION BY i_class) AS revenueratio
FROM web_sales, item, date_dim
WHERE ws_item_sk = i_item_sk AND i_category IN ('Sports', 'Books', 'Home') AND ws_sold_date_sk = d_date_sk
  AND d_date BETWEEN DATE '2002-03-10' AND DATE '2002-03-10' + INTERVAL '30' DAY
GROUP BY i_item_id, i_item_desc, i_category, i_class, i_current_price
ORDER BY i_category, i_class, i_item_id, i_item_desc, revenueratio, i_current_price LIMIT 100;

-- q13
SELECT avg(ss_quantity), avg(ss_ext_sales_price), avg(ss_ext_wholesale_cost), sum(ss_ext_wholesale_cost)
FROM store_sales, store, customer_demographics, household_demographics, customer_address, date_dim
WHERE s_store_sk = ss_store_sk AND ss_sold_date_sk = d_date_sk AND d_year = 2001
  AND (ss_hdemo_sk = hd_demo_sk AND cd_demo_sk = ss_cdemo_sk AND cd_marital_status = 'M'
       AND cd_education_status = 'Advanced Degree' AND ss_sales_price BETWEEN 100.00 AND 150.00 AND hd_dep_count = 3
       OR ss_hdemo_sk = hd_demo_sk AND cd_demo_sk = ss_cdemo_sk AND cd_marital_status = 'S'
       AND cd_education_status = 'College' AND ss_sales_price BETWEEN 50.00 AND 100.00 AND hd_dep_count = 1
       OR ss_hdemo_sk = hd_demo_sk AND cd_demo_sk = ss_cdemo_sk AND cd_marital_status = 'W'
       AND cd_education_status = '2 yr Degree' AND ss_sales_price BETWEEN 150.00 AND 200.00 AND hd_dep_count = 1)
  AND (ss_addr_sk = ca_address_sk AND ca_country = 'United States' AND ca_state IN ('TX', 'OH', 'TN')
       AND ss_net_profit BETWEEN 100 AND 200
       OR ss_addr_sk = ca_address_sk AND ca_country = 'United States' AND ca_state IN ('OR', 'NM', 'KY')
       AND ss_net_profit BETWEEN 150 AND 300
       OR ss_addr_sk = ca_address_sk AND ca_country = 'United States' AND ca_state IN ('VA', 'TX', 'MS')
       AND ss_net_profit BETWEEN 50 AND 250);

-- q14a
WITH cross_items AS (
    SELECT i_item_sk AS ss_item_sk
    FROM item,
         (SELECT iss.i_brand_id AS brand_id, iss.i_class_id AS class_id, iss.i_category_id AS category_id
          FROM store_sales, item iss, date_dim d1
          WHERE ss_item_sk = iss.i_item_sk AND ss_sold_date_sk = d1.d_date_sk AND d1.d_year BETWEEN 1999 AND 2001
          INTERSECT
          SELECT ics.i_brand_id, ics.i_class_id, ics.i_category_id FROM catalog_sales, item ics, date_dim d2
          WHERE cs_item_sk = ics.i_item_sk AND cs_sold_date_sk = d2.d_date_sk AND d2.d_year BETWEEN 1999 AND 2001
          INTERSECT
          SELECT iws.i_brand_id, iws.i_class_id, iws.i_category_id FROM web_sales, item iws, date_dim d3
          WHERE ws_item_sk = iws.i_item_sk AND ws_sold_date_sk = d3.d_date_sk AND d3.d_year BETWEEN 1999 AND 2001) x
    WHERE i_brand_id = brand_id AND i_class_id = class_id AND i_category_id = category_id),
avg_sales AS (
    SELECT avg(quantity * list_price) AS average_sales
    FROM (SELECT ss_quantity AS quantity, ss_list_price AS list_price FROM store_sales, date_dim
          WHERE ss_sold_date_sk = d_date_sk AND d_year BETWEEN 1999 AND 2001
          UNION ALL
          SELECT cs_quantity, cs_list_price FROM catalog_sales, date_dim
          WHERE cs_sold_date_sk = d_date_sk AND d_year BETWEEN 1999 AND 2001
          UNION ALL
          SELECT ws_quantity, ws_list_price FROM web_sales, date_dim
          WHERE ws_sold_date_sk = d_date_sk AND d_year BETWEEN 1999 AND 2001) x)
SELECT channel, i_brand_id, i_class_id, i_category_id, sum(sales), sum(number_sales)
FROM (SELECT 'store' AS channel, i_brand_id, i_class_id, i_category_id, sum(ss_quantity * ss_list_price) AS sales,
             count(*) AS number_sales
      FROM store_sales, item, date_dim
      WHERE ss_item_sk IN (SELECT ss_item_sk FROM cross_items) AND ss_item_sk = i_item_sk
        AND ss_sold_date_sk = d_date_sk AND d_year = 2001 AND d_moy = 11
      GROUP BY i_brand_id, i_class_id, i_category_id
      HAVING sum(ss_quantity * ss_list_price) > (SELECT average_sales FROM avg_sales)
      UNION ALL
      SELECT 'catalog', i_brand_id, i_class_id, i_category_id, sum(cs_quantity * cs_list_price), count(*)
      FROM catalog_sales, item, date_dim
      WHERE cs_item_sk IN (SELECT ss_item_sk FROM cross_items) AND cs_item_sk = i_item_sk
        AND cs_sold_date_sk = d_date_sk AND d_year = 2001 AND d_moy = 11
      GROUP BY i_brand_id, i_class_id, i_category_id
      HAVING sum(cs_quantity * cs_list_price) > (SELECT average_sales FROM avg_sales)
      UNION ALL
      SELECT 'web', i_brand_id, i_class_id, i_category_id, sum(ws_quantity * ws_list_price), count(*)
      FROM web_sales, item, date_dim
      WHERE ws_item_sk IN (SELECT ss_item_sk FROM cross_items) AND ws_item_sk = i_item_sk
        AND ws_sold_date_sk = d_date_sk AND d_year = 2001 AND d_moy = 11
      GROUP BY i_brand_id, i_class_id, i_category_id
      HAVING sum(ws_quantity * ws_list_price) > (SELECT average_sales FROM avg_sales)) y
GROUP BY ROLLUP (channel, i_brand_id, i_class_id, i_category_id)
ORDER BY channel, i_brand_id, i_class_id, i_category_id LIMIT 100;

-- q14b
WITH cross_items AS (
    SELECT i_item_sk AS ss_item_sk
    FROM item,
         (SELECT iss.i_brand_id AS brand_id, iss.i_class_id AS class_id, iss.i_category_id AS category_id
          FROM store_sales, item iss, date_dim d1
          WHERE ss_item_sk = iss.i_item_sk AND ss_sold_date_sk = d1.d_date_sk AND d1.d_year BETWEEN 1999 AND 2001
          INTERSECT
          SELECT ics.i_brand_id, ics.i_class_id, ics.i_category_id FROM catalog_sales, item ics, date_dim d2
          WHERE cs_item_sk = ics.i_item_sk AND cs_sold_date_sk = d2.d_date_sk AND d2.d_year BETWEEN 1999 AND 2001
          INTERSECT
          SELECT iws.i_brand_id, iws.i_class_id, iws.i_category_id FROM web_sales, item iws, date_dim d3
          WHERE ws_item_sk = iws.i_item_sk AND ws_sold_date_sk = d3.d_date_sk AND d3.d_year BETWEEN 1999 AND 2001) x
    WHERE i_brand_id = brand_id AND i_class_id = class_id AND i_category_id = category_id),
avg_sales AS (
    SELECT avg(quantity * list_price) AS average_sales
    FROM (SELECT ss_quantity AS quantity, ss_list_price AS list_price FROM store_sales, date_dim
          WHERE ss_sold_date_sk = d_date_sk AND d_year BETWEEN 1999 AND 2001
          UNION ALL
          SELECT cs_quantity, cs_list_price FROM catalog_sales, date_dim
          WHERE cs_sold_date_sk = d_date_sk AND d_year BETWEEN 1999 AND 2001
          UNION ALL
          SELECT ws_quantity, ws_list_price FROM web_sales, date_dim
          WHERE ws_sold_date_sk = d_date_sk AND d_year BETWEEN 1999 AND 2001) x)
SELECT this_year.channel, this_year.i_brand_id, this_year.i_class_id, this_year.i_category_id, this_year.sales,
       this_year.number_sales, last_year.i_brand_id AS last_brand_id, last_year.i_class_id AS last_class_id,
       last_year.i_category_id AS last_category_id, last_year.sales AS last_sales,
       last_year.number_sales AS last_number_sales
FROM (SELECT 'store' AS channel, i_brand_id, i_class_id, i_category_id, sum(ss_quantity * ss_list_price) AS sales,
             count(*) AS number_sales
      FROM store_sales, item, date_dim
      WHERE ss_item_sk IN (SELECT ss_item_sk FROM cross_items) AND ss_item_sk = i_item_sk
        AND ss_sold_date_sk = d_date_sk
        AND d_week_seq = (SELECT d_week_seq FROM date_dim WHERE d_year = 2000 AND d_moy = 12 AND d_dom = 11)
      GROUP BY i_brand_id, i_class_id, i_category_id
      HAVING sum(ss_quantity * ss_list_price) > (SELECT average_sales FROM avg_sales)) this_year,
     (SELECT 'store' AS channel, i_brand_id, i_class_id, i_category_id, sum(ss_quantity * ss_list_price) AS sales,
             count(*) AS number_sales
      FROM store_sales, item, date_dim
      WHERE ss_item_sk IN (SELECT ss_item_sk FROM cross_items) AND ss_item_sk = i_item_sk
        AND ss_sold_date_sk = d_date_sk
        AND d_week_seq = (SELECT d_week_seq FROM date_dim WHERE d_year = 1999 AND d_moy = 12 AND d_dom = 11)
      GROUP BY i_brand_id, i_class_id, i_category_id
      HAVING sum(ss_quantity * ss_list_price) > (SELECT average_sales FROM avg_sales)) last_year
WHERE this_year.i_brand_id = last_year.i_brand_id AND this_year.i_class_id = last_year.i_class_id
  AND this_year.i_category_id = last_year.i_category_id
ORDER BY this_year.channel, this_year.i_brand_id, this_year.i_class_id, this_year.i_category_id LIMIT 100;

-- q15
SELECT ca_zip, sum(cs_sales_price)
FROM catalog_sales, customer, customer_address, date_dim
WHERE cs_bill_customer_sk = c_customer_sk AND c_current_addr_sk = ca_address_sk
  AND (substring(ca_zip, 1, 5) IN ('85669', '86197', '88274', '83405', '86475', '85392', '85460', '80348', '81792')
       OR ca_state IN ('CA', 'WA', 'GA') OR cs_sales_price > 500)
  AND cs_sold_date_sk = d_date_sk AND d_qoy = 2 AND d_year = 2001
GROUP BY ca_zip
ORDER BY ca_zip LIMIT 100;

-- q16
SELECT count(DISTINCT cs_order_number) AS order_count, sum(cs_ext_ship_cost) AS total_shipping_cost,
       sum(cs_net_profit) AS total_net_profit
FROM catalog_sales cs1, date_dim, customer_address, call_center
WHERE d_date BETWEEN DATE '2002-02-01' AND DATE '2002-02-01' + INTERVAL '60' DAY AND cs1.cs_ship_date_sk = d_date_sk
  AND cs1.cs_ship_addr_sk = ca_address_sk AND ca_state = 'GA' AND cs1.cs_call_center_sk = cc_call_center_sk
  AND cc_county IN ('Williamson County')
  AND EXISTS (SELECT * FROM catalog_sales cs2
              WHERE cs1.cs_order_number = cs2.cs_order_number AND cs1.cs_warehouse_sk <> cs2.cs_warehouse_sk)
  AND NOT EXISTS (SELECT * FROM catalog_returns cr1 WHERE cs1.cs_order_number = cr1.cr_order_number)
ORDER BY count(DISTINCT cs_order_number) LIMIT 100;

-- q17
SELECT i_item_id, i_item_desc, s_state, count(ss_quantity) AS store_sales_quantitycount,
       avg(ss_quantity) AS store_sales_quantityave, stddev_samp(ss_quantity) AS store_sales_quantitystdev,
       stddev_samp(ss_quantity) / avg(ss_quantity) AS store_sales_quantitycov,
       count(sr_return_quantity) AS store_returns_quantitycount, avg(sr_return_quantity) AS store_returns_quantityave,
       stddev_samp(sr_return_quantity) AS store_returns_quantitystdev,
       stddev_samp(sr_return_quantity) / avg(sr_return_quantity) AS store_returns_quantitycov,
       count(cs_quantity) AS catalog_sales_quantitycount, avg(cs_quantity) AS catalog_sales_quantityave,
       stddev_samp(cs_quantity) AS catalog_sales_quantitystdev,
       stddev_samp(cs_quantity) / avg(cs_quantity) AS catalog_sales_quantitycov
FROM store_sales, store_returns, catalog_sales, date_dim d1, date_dim d2, date_dim d3, store, item
WHERE d1.d_quarter_name = '2001Q1' AND d1.d_date_sk = ss_sold_date_sk AND i_item_sk = ss_item_sk
  AND s_store_sk = ss_store_sk AND ss_customer_sk = sr_customer_sk AND ss_item_sk = sr_item_sk
  AND ss_ticket_number = sr_ticket_number AND sr_returned_date_sk = d2.d_date_sk
  AND d2.d_quarter_name IN ('2001Q1', '2001Q2', '2001Q3') AND sr_customer_sk = cs_bill_customer_sk
  AND sr_item_sk = cs_item_sk AND cs_sold_date_sk = d3.d_date_sk
  AND d3.d_quarter_name IN ('2001Q1', '2001Q2', '2001Q3')
GROUP BY i_item_id, i_item_desc, s_state
ORDER BY i_item_id, i_item_desc, s_state LIMIT 100;

-- q18
SELECT i_item_id, ca_country, ca_state, ca_county, avg(CAST(cs_quantity AS DECIMAL(12, 2))) AS agg1,
       avg(CAST(cs_list_price AS DECIMAL(12, 2))) AS agg2, avg(CAST(cs_coupon_amt AS DECIMAL(12, 2))) AS agg3,
       avg(CAST(cs_sales_price AS DECIMAL(12, 2))) AS agg4, avg(CAST(cs_net_profit AS DECIMAL(12, 2))) AS agg5,
       avg(CAST(c_birth_year AS DECIMAL(12, 2))) AS agg6, avg(CAST(cd1.cd_dep_count AS DECIMAL(12, 2))) AS agg7
FROM catalog_sales, customer_demographics cd1, customer_demographics cd2, customer, customer_address, date_dim, item
WHERE cs_sold_date_sk = d_date_sk AND cs_item_sk = i_item_sk AND cs_bill_cdemo_sk = cd1.cd_demo_sk
  AND cs_bill_customer_sk = c_customer_sk AND cd1.cd_gender = 'F' AND cd1.cd_education_status = 'Unknown'
  AND c_current_cdemo_sk = cd2.cd_demo_sk AND c_current_addr_sk = ca_address_sk
  AND c_birth_month IN (1, 6, 8, 9, 12, 2) AND d_year = 1998
  AND ca_state IN ('MS', 'IN', 'ND', 'OK', 'NM', 'VA', 'MS')
GROUP BY ROLLUP (i_item_id, ca_country, ca_state, ca_county)
ORDER BY ca_country, ca_state, ca_county, i_item_id LIMIT 100;

-- q19
SELECT i_brand_id AS brand_id, i_brand AS brand, i_manufact_id, i_manufact, sum(ss_ext_sales_price) AS ext_price
FROM date_dim, store_sales, item, customer, customer_address, store
WHERE d_date_sk = ss_sold_date_sk AND ss_item_sk = i_item_sk AND i_manager_id = 8 AND d_moy = 11 AND d_year = 1998
  AND ss_customer_sk = c_customer_sk AND c_current_addr_sk = ca_address_sk
  AND substring(ca_zip, 1, 5) <> substring(s_zip, 1, 5) AND ss_store_sk = s_store_sk
GROUP BY i_brand, i_brand_id, i_manufact_id, i_manufact
ORDER BY ext_price DESC, i_brand, i_brand_id, i_manufact_id, i_manufact LIMIT 100;

-- q20
SELECT i_item_id, i_item_desc, i_category, i_class, i_current_price, sum(cs_ext_sales_price) AS itemrevenue,
       sum(cs_ext_sales_price) * 100 / sum(sum(cs_ext_sales_price)) OVER (PARTITION BY i_class) AS revenueratio
FROM catalog_sales, item, date_dim
WHERE cs_item_sk = i_item_sk AND i_category IN ('Sports', 'Books', 'Home') AND cs_sold_date_sk = d_date_sk
  AND d_date BETWEEN DATE '1999-02-22' AND DATE '1999-02-22' + INTERVAL '30' DAY
GROUP BY i_item_id, i_item_desc, i_category, i_class, i_current_price
ORDER BY i_category, i_class, i_item_id, i_item_desc, revenueratio, i_current_price LIMIT 100;

-- q21
SELECT *
FROM (SELECT w_warehouse_name, i_item_id,
             sum(CASE WHEN d_date < DATE '2000-03-11' THEN inv_quantity_on_hand ELSE 0 END) AS inv_before,
             sum(CASE WHEN d_date >= DATE '2000-03-11' THEN inv_quantity_on_hand ELSE 0 END) AS inv_after
      FROM inventory, warehouse, item, date_dim
      WHERE i_current_price BETWEEN 0.99 AND 1.49 AND i_item_sk = inv_item_sk AND inv_warehouse_sk = w_warehouse_sk
        AND inv_date_sk = d_date_sk
        AND d_date BETWEEN DATE '2000-03-11' - INTERVAL '30' DAY AND DATE '2000-03-11' + INTERVAL '30' DAY
      GROUP BY w_warehouse_name, i_item_id) x
WHERE CASE WHEN inv_before > 0 THEN CAST(inv_after AS DOUBLE) / inv_before END BETWEEN 2.0 / 3.0 AND 3.0 / 2.0
ORDER BY w_warehouse_name, i_item_id LIMIT 100;

-- q22
SELECT i_product_name, i_brand, i_class, i_category, avg(inv_quantity_on_hand) AS qoh
FROM inventory, date_dim, item
WHERE inv_date_sk = d_date_sk AND inv_item_sk = i_item_sk AND d_month_seq BETWEEN 1200 AND 1200 + 11
GROUP BY ROLLUP (i_product_name, i_brand, i_class, i_category)
ORDER BY qoh, i_product_name, i_brand, i_class, i_category LIMIT 100;

-- q23a
WITH frequent_ss_items AS (
    SELECT substring(i_item_desc, 1, 30) AS itemdesc, i_item_sk AS item_sk, d_date AS solddate, count(*) AS cnt
    FROM store_sales, date_dim, item
    WHERE ss_sold_date_sk = d_date_sk AND ss_item_sk = i_item_sk AND d_year IN (2000, 2001, 2002, 2003)
    GROUP BY substring(i_item_desc, 1, 30), i_item_sk, d_date HAVING count(*) > 1),
max_store_sales AS (
    SELECT max(csales) AS tpcds_cmax
    FROM (SELECT c_customer_sk, sum(ss_quantity * ss_sales_price) AS csales FROM store_sales, customer, date_dim
          WHERE ss_customer_sk = c_customer_sk AND ss_sold_date_sk = d_date_sk AND d_year IN (2000, 2001, 2002, 2003)
          GROUP BY c_customer_sk) x),
best_ss_customer AS (
    SELECT c_customer_sk, sum(ss_quantity * ss_sales_price) AS ssales FROM store_sales, customer
    WHERE ss_customer_sk = c_customer_sk
    GROUP BY c_customer_sk
    HAVING sum(ss_quantity * ss_sales_price) > 50 / 100.0 * (SELECT * FROM max_store_sales))
SELECT sum(sales)
FROM (SELECT cs_quantity * cs_list_price AS sales FROM catalog_sales, date_dim
      WHERE d_year = 2000 AND d_moy = 2 AND cs_sold_date_sk = d_date_sk
        AND cs_item_sk IN (SELECT item_sk FROM frequent_ss_items)
        AND cs_bill_customer_sk IN (SELECT c_customer_sk FROM best_ss_customer)
      UNION ALL
      SELECT ws_quantity * ws_list_price FROM web_sales, date_dim
      WHERE d_year = 2000 AND d_moy = 2 AND ws_sold_date_sk = d_date_sk
        AND ws_item_sk IN (SELECT item_sk FROM frequent_ss_items)
        AND ws_bill_customer_sk IN (SELECT c_customer_sk FROM best_ss_customer)) y
LIMIT 100;

-- q23b
WITH frequent_ss_items AS (
    SELECT substring(i_item_desc, 1, 30) AS itemdesc, i_item_sk AS item_sk, d_date AS solddate, count(*) AS cnt
    FROM store_sales, date_dim, item
    WHERE ss_sold_date_sk = d_date_sk AND ss_item_sk = i_item_sk AND d_year IN (2000, 2001, 2002, 2003)
    GROUP BY substring(i_item_desc, 1, 30), i_item_sk, d_date HAVING count(*) > 1),
max_store_sales AS (
    SELECT max(csales) AS tpcds_cmax
    FROM (SELECT c_customer_sk, sum(ss_quantity * ss_sales_price) AS csales FROM store_sales, customer, date_dim
          WHERE ss_customer_sk = c_customer_sk AND ss_sold_date_sk = d_date_sk AND d_year IN (2000, 2001, 2002, 2003)
          GROUP BY c_customer_sk) x),
best_ss_customer AS (
    SELECT c_customer_sk, sum(ss_quantity * ss_sales_price) AS ssales FROM store_sales, customer
    WHERE ss_customer_sk = c_customer_sk
    GROUP BY c_customer_sk
    HAVING sum(ss_quantity * ss_sales_price) > 50 / 100.0 * (SELECT * FROM max_store_sales))
SELECT c_last_name, c_first_name, sales
FROM (SELECT c_last_name, c_first_name, sum(cs_quantity * cs_list_price) AS sales
      FROM catalog_sales, customer, date_dim
      WHERE d_year = 2000 AND d_moy = 2 AND cs_sold_date_sk = d_date_sk
        AND cs_item_sk IN (SELECT item_sk FROM frequent_ss_items)
        AND cs_bill_customer_sk IN (SELECT c_customer_sk FROM best_ss_customer) AND cs_bill_customer_sk = c_customer_sk
      GROUP BY c_last_name, c_first_name
      UNION ALL
      SELECT c_last_name, c_first_name, sum(ws_quantity * ws_list_price)
      FROM web_sales, customer, date_dim
      WHERE d_year = 2000 AND d_moy = 2 AND ws_sold_date_sk = d_date_sk
        AND ws_item_sk IN (SELECT item_sk FROM frequent_ss_items)
        AND ws_bill_customer_sk IN (SELECT c_customer_sk FROM best_ss_customer) AND ws_bill_customer_sk = c_customer_sk
      GROUP BY c_last_name, c_first_name) y
ORDER BY c_last_name, c_first_name, sales LIMIT 100;

-- q24a
WITH ssales AS (
    SELECT c_last_name, c_first_name, s_store_name, ca_state, s_state, i_color, i_current_price, i_manager_id, i_units,
           i_size, sum(ss_net_paid) AS netpaid
    FROM store_sales, store_returns, store, item, customer, customer_address
    WHERE ss_ticket_number = sr_ticket_number AND ss_item_sk = sr_item_sk AND ss_customer_sk = c_customer_sk
      AND ss_item_sk = i_item_sk AND ss_store_sk = s_store_sk AND c_current_addr_sk = ca_address_sk
      AND c_birth_country <> upper(ca_country) AND s_zip = ca_zip AND s_market_id = 8
    GROUP BY c_last_name, c_first_name, s_store_name, ca_state, s_state, i_color, i_current_price, i_manager_id,
             i_units, i_size)
SELECT c_last_name, c_first_name, s_store_name, sum(netpaid) AS paid
FROM ssales
WHERE i_color = 'pale'
GROUP BY c_last_name, c_first_name, s_store_name
HAVING sum(netpaid) > (SELECT 0.05 * avg(netpaid) FROM ssales)
ORDER BY c_last_name, c_first_name, s_store_name;

-- q24b
WITH ssales AS (
    SELECT c_last_name, c_first_name, s_store_name, ca_state, s_state, i_color, i_current_price, i_manager_id, i_units,
           i_size, sum(ss_net_paid) AS netpaid
    FROM store_sales, store_returns, store, item, customer, customer_address
    WHERE ss_ticket_number = sr_ticket_number AND ss_item_sk = sr_item_sk AND ss_customer_sk = c_customer_sk
      AND ss_item_sk = i_item_sk AND ss_store_sk = s_store_sk AND c_current_addr_sk = ca_address_sk
      AND c_birth_country <> upper(ca_country) AND s_zip = ca_zip AND s_market_id = 8
    GROUP BY c_last_name, c_first_name, s_store_name, ca_state, s_state, i_color, i_current_price, i_manager_id,
             i_units, i_size)
SELECT c_last_name, c_first_name, s_store_name, sum(netpaid) AS paid
FROM ssales
WHERE i_color = 'chiffon'
GROUP BY c_last_name, c_first_name, s_store_name
HAVING sum(netpaid) > (SELECT 0.05 * avg(netpaid) FROM ssales)
ORDER BY c_last_name, c_first_name, s_store_name;

-- q25
SELECT i_item_id, i_item_desc, s_store_id, s_store_name, sum(ss_net_profit) AS store_sales_profit,
       sum(sr_net_loss) AS store_returns_loss, sum(cs_net_profit) AS catalog_sales_profit
FROM store_sales, store_returns, catalog_sales, date_dim d1, date_dim d2, date_dim d3, store, item
WHERE d1.d_moy = 4 AND d1.d_year = 2001 AND d1.d_date_sk = ss_sold_date_sk AND i_item_sk = ss_item_sk
  AND s_store_sk = ss_store_sk AND ss_customer_sk = sr_customer_sk AND ss_item_sk = sr_item_sk
  AND ss_ticket_number = sr_ticket_number AND sr_returned_date_sk = d2.d_date_sk AND d2.d_moy BETWEEN 4 AND 10
  AND d2.d_year = 2001 AND sr_customer_sk = cs_bill_customer_sk AND sr_item_sk = cs_item_sk
  AND cs_sold_date_sk = d3.d_date_sk AND d3.d_moy BETWEEN 4 AND 10 AND d3.d_year = 2001
GROUP BY i_item_id, i_item_desc, s_store_id, s_store_name
ORDER BY i_item_id, i_item_desc, s_store_id, s_store_name LIMIT 100;

-- q26
SELECT i_item_id, avg(cs_quantity) AS agg1, avg(cs_list_price) AS agg2, avg(cs_coupon_amt) AS agg3,
       avg(cs_sales_price) AS agg4
FROM catalog_sales, customer_demographics, date_dim, item, promotion
WHERE cs_sold_date_sk = d_date_sk AND cs_item_sk = i_item_sk AND cs_bill_cdemo_sk = cd_demo_sk
  AND cs_promo_sk = p_promo_sk AND cd_gender = 'M' AND cd_marital_status = 'S' AND cd_education_status = 'College'
  AND (p_channel_email = 'N' OR p_channel_event = 'N') AND d_year = 2000
GROUP BY i_item_id
ORDER BY i_item_id LIMIT 100;

-- q27
SELECT i_item_id, s_state, grouping(s_state) AS g_state, avg(ss_quantity) AS agg1, avg(ss_list_price) AS agg2,
       avg(ss_coupon_amt) AS agg3, avg(ss_sales_price) AS agg4
FROM store_sales, customer_demographics, date_dim, store, item
WHERE ss_sold_date_sk = d_date_sk AND ss_item_sk = i_item_sk AND ss_store_sk = s_store_sk AND ss_cdemo_sk = cd_demo_sk
  AND cd_gender = 'M' AND cd_marital_status = 'S' AND cd_education_status = 'College' AND d_year = 2002
  AND s_state IN ('TN', 'SD', 'AL', 'MI', 'OH', 'GA')
GROUP BY ROLLUP (i_item_id, s_state)
ORDER BY i_item_id, s_state, g_state LIMIT 100;

-- q28
SELECT *
FROM (SELECT avg(ss_list_price) AS b1_lp, count(ss_list_price) AS b1_cnt, count(DISTINCT ss_list_price) AS b1_cntd
      FROM store_sales
      WHERE ss_quantity BETWEEN 0 AND 5 AND (ss_list_price BETWEEN 8 AND 18 OR ss_coupon_amt BETWEEN 459 AND 1459
                                             OR ss_wholesale_cost BETWEEN 57 AND 77)) b1,
     (SELECT avg(ss_list_price) AS b2_lp, count(ss_list_price) AS b2_cnt, count(DISTINCT ss_list_price) AS b2_cntd
      FROM store_sales
      WHERE ss_quantity BETWEEN 6 AND 10 AND (ss_list_price BETWEEN 90 AND 100 OR ss_coupon_amt BETWEEN 2323 AND 3323
                                              OR ss_wholesale_cost BETWEEN 31 AND 51)) b2,
     (SELECT avg(ss_list_price) AS b3_lp, count(ss_list_price) AS b3_cnt, count(DISTINCT ss_list_price) AS b3_cntd
      FROM store_sales
      WHERE ss_quantity BETWEEN 11 AND 15 AND (ss_list_price BETWEEN 142 AND 152
                                               OR ss_coupon_amt BETWEEN 12214 AND 13214
                                               OR ss_wholesale_cost BETWEEN 79 AND 99)) b3,
     (SELECT avg(ss_list_price) AS b4_lp, count(ss_list_price) AS b4_cnt, count(DISTINCT ss_list_price) AS b4_cntd
      FROM store_sales
      WHERE ss_quantity BETWEEN 16 AND 20 AND (ss_list_price BETWEEN 135 AND 145 OR ss_coupon_amt BETWEEN 6071 AND 7071
                                               OR ss_wholesale_cost BETWEEN 38 AND 58)) b4,
     (SELECT avg(ss_list_price) AS b5_lp, count(ss_list_price) AS b5_cnt, count(DISTINCT ss_list_price) AS b5_cntd
      FROM store_sales
      WHERE ss_quantity BETWEEN 21 AND 25 AND (ss_list_price BETWEEN 122 AND 132 OR ss_coupon_amt BETWEEN 836 AND 1836
                                               OR ss_wholesale_cost BETWEEN 17 AND 37)) b5,
     (SELECT avg(ss_list_price) AS b6_lp, count(ss_list_price) AS b6_cnt, count(DISTINCT ss_list_price) AS b6_cntd
      FROM store_sales
      WHERE ss_quantity BETWEEN 26 AND 30 AND (ss_list_price BETWEEN 154 AND 164 OR ss_coupon_amt BETWEEN 7326 AND 8326
                                               OR ss_wholesale_cost BETWEEN 7 AND 27)) b6
LIMIT 100;

-- q29
SELECT i_item_id, i_item_desc, s_store_id, s_store_name, sum(ss_quantity) AS store_sales_quantity,
       sum(sr_return_quantity) AS store_returns_quantity, sum(cs_quantity) AS catalog_sales_quantity
FROM store_sales, store_returns, catalog_sales, date_dim d1, date_dim d2, date_dim d3, store, item
WHERE d1.d_moy = 9 AND d1.d_year = 1999 AND d1.d_date_sk = ss_sold_date_sk AND i_item_sk = ss_item_sk
  AND s_store_sk = ss_store_sk AND ss_customer_sk = sr_customer_sk AND ss_item_sk = sr_item_sk
  AND ss_ticket_number = sr_ticket_number AND sr_returned_date_sk = d2.d_date_sk AND d2.d_moy BETWEEN 9 AND 12
  AND d2.d_year = 1999 AND sr_customer_sk = cs_bill_customer_sk AND sr_item_sk = cs_item_sk
  AND cs_sold_date_sk = d3.d_date_sk AND d3.d_year IN (1999, 2000, 2001)
GROUP BY i_item_id, i_item_desc, s_store_id, s_store_name
ORDER BY i_item_id, i_item_desc, s_store_id, s_store_name LIMIT 100;

-- q30
WITH customer_total_return AS (
    SELECT wr_returning_customer_sk AS ctr_customer_sk, ca_state AS ctr_state, sum(wr_return_amt) AS ctr_total_return
    FROM web_returns, date_dim, customer_address
    WHERE wr_returned_date_sk = d_date_sk AND d_year = 2002 AND wr_returning_addr_sk = ca_address_sk
    GROUP BY wr_returning_customer_sk, ca_state)
SELECT c_customer_id, c_salutation, c_first_name, c_last_name, c_preferred_cust_flag, c_birth_day, c_birth_month,
       c_birth_year, c_birth_country, c_login, c_email_address, c_last_review_date_sk, ctr_total_return
FROM customer_total_return ctr1, customer_address, customer
WHERE ctr1.ctr_total_return > (SELECT avg(ctr_total_return) * 1.2 FROM customer_total_return ctr2
                               WHERE ctr1.ctr_state = ctr2.ctr_state)
  AND ca_address_sk = c_current_addr_sk AND ca_state = 'GA' AND ctr1.ctr_customer_sk = c_customer_sk
ORDER BY c_customer_id, c_salutation, c_first_name, c_last_name, c_preferred_cust_flag, c_birth_day, c_birth_month,
         c_birth_year, c_birth_country, c_login, c_email_address, c_last_review_date_sk, ctr_total_return LIMIT 100;

-- q31
WITH ss AS (
    SELECT ca_county, d_qoy, d_year, sum(ss_ext_sales_price) AS store_sales
    FROM store_sales, date_dim, customer_address
    WHERE ss_sold_date_sk = d_date_sk AND ss_addr_sk = ca_address_sk
    GROUP BY ca_county, d_qoy, d_year),
ws AS (
    SELECT ca_county, d_qoy, d_year, sum(ws_ext_sales_price) AS web_sales
    FROM web_sales, date_dim, customer_address
    WHERE ws_sold_date_sk = d_date_sk AND ws_bill_addr_sk = ca_address_sk
    GROUP BY ca_county, d_qoy, d_year)
SELECT ss1.ca_county, ss1.d_year, ws2.web_sales / ws1.web_sales AS web_q1_q2_increase,
       ss2.store_sales / ss1.store_sales AS store_q1_q2_increase,
       ws3.web_sales / ws2.web_sales AS web_q2_q3_increase,
       ss3.store_sales / ss2.store_sales AS store_q2_q3_increase
FROM ss ss1, ss ss2, ss ss3, ws ws1, ws ws2, ws ws3
WHERE ss1.d_qoy = 1 AND ss1.d_year = 2000 AND ss1.ca_county = ss2.ca_county AND ss2.d_qoy = 2 AND ss2.d_year = 2000
  AND ss2.ca_county = ss3.ca_county AND ss3.d_qoy = 3 AND ss3.d_year = 2000 AND ss1.ca_county = ws1.ca_county
  AND ws1.d_qoy = 1 AND ws1.d_year = 2000 AND ws1.ca_county = ws2.ca_county AND ws2.d_qoy = 2 AND ws2.d_year = 2000
  AND ws1.ca_county = ws3.ca_county AND ws3.d_qoy = 3 AND ws3.d_year = 2000
  AND CASE WHEN ws1.web_sales > 0 THEN ws2.web_sales / ws1.web_sales END
      > CASE WHEN ss1.store_sales > 0 THEN ss2.store_sales / ss1.store_sales END
  AND CASE WHEN ws2.web_sales > 0 THEN ws3.web_sales / ws2.web_sales END
      > CASE WHEN ss2.store_sales > 0 THEN ss3.store_sales / ss2.store_sales END
ORDER BY ss1.ca_county;

-- q32
SELECT sum(cs_ext_discount_amt) AS excess_discount_amount
FROM catalog_sales, item, date_dim
WHERE i_manufact_id = 46 AND i_item_sk = cs_item_sk
  AND d_date BETWEEN DATE '2000-01-27' AND DATE '2000-01-27' + INTERVAL '90' DAY AND d_date_sk = cs_sold_date_sk
  AND cs_ext_discount_amt > (SELECT 1.3 * avg(cs_ext_discount_amt) FROM catalog_sales, date_dim
                             WHERE cs_item_sk = i_item_sk
                               AND d_date BETWEEN DATE '2000-01-27' AND DATE '2000-01-27' + INTERVAL '90' DAY
                               AND d_date_sk = cs_sold_date_sk)
LIMIT 100;

-- q33
WITH ss AS (
    SELECT i_manufact_id, sum(ss_ext_sales_price) AS total_sales
    FROM store_sales, date_dim, customer_address, item
    WHERE i_manufact_id IN (SELECT i_manufact_id FROM item WHERE i_category IN ('Electronics'))
      AND ss_item_sk = i_item_sk AND ss_sold_date_sk = d_date_sk AND d_year = 1998 AND d_moy = 5
      AND ss_addr_sk = ca_address_sk AND ca_gmt_offset = -5
    GROUP BY i_manufact_id),
cs AS (
    SELECT i_manufact_id, sum(cs_ext_sales_price) AS total_sales
    FROM catalog_sales, date_dim, customer_address, item
    WHERE i_manufact_id IN (SELECT i_manufact_id FROM item WHERE i_category IN ('Electronics'))
      AND cs_item_sk = i_item_sk AND cs_sold_date_sk = d_date_sk AND d_year = 1998 AND d_moy = 5
      AND cs_bill_addr_sk = ca_address_sk AND ca_gmt_offset = -5
    GROUP BY i_manufact_id),
ws AS (
    SELECT i_manufact_id, sum(ws_ext_sales_price) AS total_sales
    FROM web_sales, date_dim, customer_address, item
    WHERE i_manufact_id IN (SELECT i_manufact_id FROM item WHERE i_category IN ('Electronics'))
      AND ws_item_sk = i_item_sk AND ws_sold_date_sk = d_date_sk AND d_year = 1998 AND d_moy = 5
      AND ws_bill_addr_sk = ca_address_sk AND ca_gmt_offset = -5
    GROUP BY i_manufact_id)
SELECT i_manufact_id, sum(total_sales) AS total_sales
FROM (SELECT * FROM ss UNION ALL SELECT * FROM cs UNION ALL SELECT * FROM ws) tmp1
GROUP BY i_manufact_id
ORDER BY total_sales, i_manufact_id LIMIT 100;

-- q34
SELECT c_last_name, c_first_name, c_salutation, c_preferred_cust_flag, ss_ticket_number, cnt
FROM (SELECT ss_ticket_number, ss_customer_sk, count(*) AS cnt
      FROM store_sales, date_dim, store, household_demographics
      WHERE ss_sold_date_sk = d_date_sk AND ss_store_sk = s_store_sk AND ss_hdemo_sk = hd_demo_sk
        AND (d_dom BETWEEN 1 AND 3 OR d_dom BETWEEN 25 AND 28)
        AND (hd_buy_potential = '>10000' OR hd_buy_potential = 'Unknown') AND hd_vehicle_count > 0
        AND CASE WHEN hd_vehicle_count > 0 THEN hd_dep_count * 1.0 / hd_vehicle_count END > 1.2
        AND d_year IN (1999, 2000, 2001) AND s_county IN ('Williamson County')
      GROUP BY ss_ticket_number, ss_customer_sk) dn, customer
WHERE ss_customer_sk = c_customer_sk AND cnt BETWEEN 15 AND 20
ORDER BY c_last_name, c_first_name, c_salutation, c_preferred_cust_flag DESC, ss_ticket_number, cnt;

-- q35
SELECT ca_state, cd_gender, cd_marital_status, cd_dep_count, count(*) AS cnt1, min(cd_dep_count), max(cd_dep_count),
       avg(cd_dep_count), cd_dep_employed_count, count(*) AS cnt2, min(cd_dep_employed_count),
       max(cd_dep_employed_count), avg(cd_dep_employed_count), cd_dep_college_count, count(*) AS cnt3,
       min(cd_dep_college_count), max(cd_dep_college_count), avg(cd_dep_college_count)
FROM customer c, customer_address ca, customer_demographics
WHERE c.c_current_addr_sk = ca.ca_address_sk AND cd_demo_sk = c.c_current_cdemo_sk
  AND EXISTS (SELECT * FROM store_sales, date_dim
              WHERE c.c_customer_sk = ss_customer_sk AND ss_sold_date_sk = d_date_sk AND d_year = 2002 AND d_qoy < 4)
  AND (EXISTS (SELECT * FROM web_sales, date_dim
               WHERE c.c_customer_sk = ws_bill_customer_sk AND ws_sold_date_sk = d_date_sk AND d_year = 2002
                 AND d_qoy < 4)
       OR EXISTS (SELECT * FROM catalog_sales, date_dim
                  WHERE c.c_customer_sk = cs_ship_customer_sk AND cs_sold_date_sk = d_date_sk AND d_year = 2002
                    AND d_qoy < 4))
GROUP BY ca_state, cd_gender, cd_marital_status, cd_dep_count, cd_dep_employed_count, cd_dep_college_count
ORDER BY ca_state, cd_gender, cd_marital_status, cd_dep_count, cd_dep_employed_count, cd_dep_college_count LIMIT 100;

-- q36
SELECT sum(ss_net_profit) / sum(ss_ext_sales_price) AS gross_margin, i_category, i_class,
       grouping(i_category) + grouping(i_class) AS lochierarchy,
       rank() OVER (PARTITION BY grouping(i_category) + grouping(i_class),
                                 CASE WHEN grouping(i_class) = 0 THEN i_category END
                    ORDER BY sum(ss_net_profit) / sum(ss_ext_sales_price)) AS rank_within_parent
FROM store_sales, date_dim d1, item, store
WHERE d1.d_year = 2001 AND d1.d_date_sk = ss_sold_date_sk AND i_item_sk = ss_item_sk AND s_store_sk = ss_store_sk
  AND s_state IN ('TN', 'SD', 'AL', 'MI', 'OH', 'GA')
GROUP BY ROLLUP (i_category, i_class)
ORDER BY lochierarchy DESC, CASE WHEN lochierarchy = 0 THEN i_category END, rank_within_parent, i_category, i_class
LIMIT 100;

-- q37
SELECT i_item_id, i_item_desc, i_current_price
FROM item, inventory, date_dim, catalog_sales
WHERE i_current_price BETWEEN 68 AND 68 + 30 AND inv_item_sk = i_item_sk AND d_date_sk = inv_date_sk
  AND d_date BETWEEN DATE '2000-02-01' AND DATE '2000-02-01' + INTERVAL '60' DAY
  AND i_manufact_id IN (69, 88, 48, 158) AND inv_quantity_on_hand BETWEEN 100 AND 500 AND cs_item_sk = i_item_sk
GROUP BY i_item_id, i_item_desc, i_current_price
ORDER BY i_item_id, i_item_desc, i_current_price LIMIT 100;

-- q38
SELECT count(*)
FROM (SELECT DISTINCT c_last_name, c_first_name, d_date FROM store_sales, date_dim, customer
      WHERE ss_sold_date_sk = d_date_sk AND ss_customer_sk = c_customer_sk AND d_month_seq BETWEEN 1200 AND 1200 + 11
      INTERSECT
      SELECT DISTINCT c_last_name, c_first_name, d_date FROM catalog_sales, date_dim, customer
      WHERE cs_sold_date_sk = d_date_sk AND cs_bill_customer_sk = c_customer_sk
        AND d_month_seq BETWEEN 1200 AND 1200 + 11
      INTERSECT
      SELECT DISTINCT c_last_name, c_first_name, d_date FROM web_sales, date_dim, customer
      WHERE ws_sold_date_sk = d_date_sk AND ws_bill_customer_sk = c_customer_sk
        AND d_month_seq BETWEEN 1200 AND 1200 + 11) hot_cust
LIMIT 100;

-- q39a
WITH inv AS (
    SELECT w_warehouse_name, w_warehouse_sk, i_item_sk, d_moy, stdev, mean,
           CASE mean WHEN 0 THEN NULL ELSE stdev / mean END AS cov
    FROM (SELECT w_warehouse_name, w_warehouse_sk, i_item_sk, d_moy, stddev_samp(inv_quantity_on_hand) AS stdev,
                 avg(inv_quantity_on_hand) AS mean
          FROM inventory, item, warehouse, date_dim
          WHERE inv_item_sk = i_item_sk AND inv_warehouse_sk = w_warehouse_sk AND inv_date_sk = d_date_sk
            AND d_year = 2001
          GROUP BY w_warehouse_name, w_warehouse_sk, i_item_sk, d_moy) foo
    WHERE CASE mean WHEN 0 THEN 0 ELSE stdev / mean END > 1)
SELECT inv1.w_warehouse_sk, inv1.i_item_sk, inv1.d_moy, inv1.mean, inv1.cov, inv2.w_warehouse_sk AS warehouse2,
       inv2.i_item_sk AS item2, inv2.d_moy AS moy2, inv2.mean AS mean2, inv2.cov AS cov2
FROM inv inv1, inv inv2
WHERE inv1.i_item_sk = inv2.i_item_sk AND inv1.w_warehouse_sk = inv2.w_warehouse_sk AND inv1.d_moy = 1
  AND inv2.d_moy = 1 + 1
ORDER BY inv1.w_warehouse_sk, inv1.i_item_sk, inv1.d_moy, inv1.mean, inv1.cov, inv2.d_moy, inv2.mean, inv2.cov;

-- q39b
WITH inv AS (
    SELECT w_warehouse_name, w_warehouse_sk, i_item_sk, d_moy, stdev, mean,
           CASE mean WHEN 0 THEN NULL ELSE stdev / mean END AS cov
    FROM (SELECT w_warehouse_name, w_warehouse_sk, i_item_sk, d_moy, stddev_samp(inv_quantity_on_hand) AS stdev,
                 avg(inv_quantity_on_hand) AS mean
          FROM inventory, item, warehouse, date_dim
          WHERE inv_item_sk = i_item_sk AND inv_warehouse_sk = w_warehouse_sk AND inv_date_sk = d_date_sk
            AND d_year = 2001
          GROUP BY w_warehouse_name, w_warehouse_sk, i_item_sk, d_moy) foo
    WHERE CASE mean WHEN 0 THEN 0 ELSE stdev / mean END > 1)
SELECT inv1.w_warehouse_sk, inv1.i_item_sk, inv1.d_moy, inv1.mean, inv1.cov, inv2.w_warehouse_sk AS warehouse2,
       inv2.i_item_sk AS item2, inv2.d_moy AS moy2, inv2.mean AS mean2, inv2.cov AS cov2
FROM inv inv1, inv inv2
WHERE inv1.i_item_sk = inv2.i_item_sk AND inv1.w_warehouse_sk = inv2.w_warehouse_sk AND inv1.d_moy = 1
  AND inv2.d_moy = 1 + 1 AND inv1.cov > 1.1
ORDER BY inv1.w_warehouse_sk, inv1.i_item_sk, inv1.d_moy, inv1.mean, inv1.cov, inv2.d_moy, inv2.mean, inv2.cov;

-- q40
SELECT w_state, i_item_id,
       sum(CASE WHEN d_date < DATE '2000-03-11' THEN cs_sales_price - coalesce(cr_refunded_cash, 0) ELSE 0 END)
         AS sales_before,
       sum(CASE WHEN d_date >= DATE '2000-03-11' THEN cs_sales_price - coalesce(cr_refunded_cash, 0) ELSE 0 END)
         AS sales_after
FROM catalog_sales LEFT OUTER JOIN catalog_returns ON cs_order_number = cr_order_number AND cs_item_sk = cr_item_sk,
     warehouse, item, date_dim
WHERE i_current_price BETWEEN 0.99 AND 1.49 AND i_item_sk = cs_item_sk AND cs_warehouse_sk = w_warehouse_sk
  AND cs_sold_date_sk = d_date_sk
  AND d_date BETWEEN DATE '2000-03-11' - INTERVAL '30' DAY AND DATE '2000-03-11' + INTERVAL '30' DAY
GROUP BY w_state, i_item_id
ORDER BY w_state, i_item_id LIMIT 100;

-- q41
SELECT DISTINCT i_product_name
FROM item i1
WHERE i_manufact_id BETWEEN 60 AND 60 + 40
  AND (SELECT count(*) FROM item
       WHERE i_manufact = i1.i_manufact
         AND (i_category = 'Women' AND i_color IN ('royal', 'khaki') AND i_units IN ('Ounce', 'Pound')
              AND i_size IN ('medium', 'extra large')
              OR i_category = 'Women' AND i_color IN ('puff', 'honeydew') AND i_units IN ('Gross', 'Ton')
              AND i_size IN ('N/A', 'small')
              OR i_category = 'Men' AND i_color IN ('violet', 'deep') AND i_units IN ('N/A', 'Dozen')
              AND i_size IN ('petite', 'large')
              OR i_category = 'Men' AND i_color IN ('light', 'cornflower') AND i_units IN ('Box', 'Pound')
              AND i_size IN ('medium', 'extra large')
              OR i_category = 'Women' AND i_color IN ('midnight', 'snow') AND i_units IN ('Pallet', 'Gross')
              AND i_size IN ('medium', 'extra large')
              OR i_category = 'Women' AND i_color IN ('cyan', 'papaya') AND i_units IN ('Cup', 'Dram')
              AND i_size IN ('N/A', 'small')
              OR i_category = 'Men' AND i_color IN ('orange', 'frosted') AND i_units IN ('Each', 'Tbl')
              AND i_size IN ('petite', 'large')
              OR i_category = 'Men' AND i_color IN ('forest', 'ghost') AND i_units IN ('Lb', 'Bundle')
              AND i_size IN ('medium', 'extra large'))) > 0
ORDER BY i_product_name LIMIT 100;

-- q42
SELECT d_year, i_category_id, i_category, sum(ss_ext_sales_price)
FROM date_dim, store_sales, item
WHERE d_date_sk = ss_sold_date_sk AND ss_item_sk = i_item_sk AND i_manager_id = 1 AND d_moy = 11 AND d_year = 2000
GROUP BY d_year, i_category_id, i_category
ORDER BY sum(ss_ext_sales_price) DESC, d_year, i_category_id, i_category LIMIT 100;

-- q43
SELECT s_store_name, s_store_id, sum(CASE WHEN d_day_name = 'Sunday' THEN ss_sales_price END) AS sun_sales,
       sum(CASE WHEN d_day_name = 'Monday' THEN ss_sales_price END) AS mon_sales,
       sum(CASE WHEN d_day_name = 'Tuesday' THEN ss_sales_price END) AS tue_sales,
       sum(CASE WHEN d_day_name = 'Wednesday' THEN ss_sales_price END) AS wed_sales,
       sum(CASE WHEN d_day_name = 'Thursday' THEN ss_sales_price END) AS thu_sales,
       sum(CASE WHEN d_day_name = 'Friday' THEN ss_sales_price END) AS fri_sales,
       sum(CASE WHEN d_day_name = 'Saturday' THEN ss_sales_price END) AS sat_sales
FROM date_dim, store_sales, store
WHERE d_date_sk = ss_sold_date_sk AND s_store_sk = ss_store_sk AND s_gmt_offset = -5 AND d_year = 2000
GROUP BY s_store_name, s_store_id
ORDER BY s_store_name, s_store_id, sun_sales, mon_sales, tue_sales, wed_sales, thu_sales, fri_sales, sat_sales
LIMIT 100;

-- q44
SELECT asceding.rnk, i1.i_product_name AS best_performing, i2.i_product_name AS worst_performing
FROM (SELECT item_sk, rnk
      FROM (SELECT item_sk, rank() OVER (ORDER BY rank_col) AS rnk
            FROM (SELECT ss_item_sk AS item_sk, avg(ss_net_profit) AS rank_col FROM store_sales ss1
                  WHERE ss_store_sk = 1
                  GROUP BY ss_item_sk
                  HAVING avg(ss_net_profit) > 0.9 * (SELECT avg(ss_net_profit) FROM store_sales
                                                     WHERE ss_store_sk = 1 AND ss_addr_sk IS NULL
                                                     GROUP BY ss_store_sk)) v1) v11
      WHERE rnk < 11) asceding,
     (SELECT item_sk, rnk
      FROM (SELECT item_sk, rank() OVER (ORDER BY rank_col DESC) AS rnk
            FROM (SELECT ss_item_sk AS item_sk, avg(ss_net_profit) AS rank_col FROM store_sales ss1
                  WHERE ss_store_sk = 1
                  GROUP BY ss_item_sk
                  HAVING avg(ss_net_profit) > 0.9 * (SELECT avg(ss_net_profit) FROM store_sales
                                                     WHERE ss_store_sk = 1 AND ss_addr_sk IS NULL
                                                     GROUP BY ss_store_sk)) v2) v21
      WHERE rnk < 11) descending,
     item i1, item i2
WHERE asceding.rnk = descending.rnk AND i1.i_item_sk = asceding.item_sk AND i2.i_item_sk = descending.item_sk
ORDER BY asceding.rnk, best_performing, worst_performing LIMIT 100;

-- q45
SELECT ca_zip, ca_city, sum(ws_sales_price)
FROM web_sales, customer, customer_address, date_dim, item
WHERE ws_bill_customer_sk = c_customer_sk AND c_current_addr_sk = ca_address_sk AND ws_item_sk = i_item_sk
  AND (substring(ca_zip, 1, 5) IN ('85669', '86197', '88274', '83405', '86475', '85392', '85460', '80348', '81792')
       OR i_item_id IN (SELECT i_item_id FROM item WHERE i_item_sk IN (2, 3, 5, 7, 11, 13, 17, 19, 23, 29)))
  AND ws_sold_date_sk = d_date_sk AND d_qoy = 2 AND d_year = 2001
GROUP BY ca_zip, ca_city
ORDER BY ca_zip, ca_city LIMIT 100;

-- q46
SELECT c_last_name, c_first_name, ca_city, bought_city, ss_ticket_number, amt, profit
FROM (SELECT ss_ticket_number, ss_customer_sk, ca_city AS bought_city, sum(ss_coupon_amt) AS amt,
             sum(ss_net_profit) AS profit
      FROM store_sales, date_dim, store, household_demographics, customer_address
      WHERE ss_sold_date_sk = d_date_sk AND ss_store_sk = s_store_sk AND ss_hdemo_sk = hd_demo_sk
        AND ss_addr_sk = ca_address_sk AND (hd_dep_count = 4 OR hd_vehicle_count = 3) AND d_dow IN (6, 0)
        AND d_year IN (1999, 2000, 2001) AND s_city IN ('Fairview', 'Midway')
      GROUP BY ss_ticket_number, ss_customer_sk, ss_addr_sk, ca_city) dn, customer, customer_address current_addr
WHERE ss_customer_sk = c_customer_sk AND c_current_addr_sk = current_addr.ca_address_sk
  AND current_addr.ca_city <> bought_city
ORDER BY c_last_name, c_first_name, ca_city, bought_city, ss_ticket_number, amt, profit LIMIT 100;

-- q47
WITH v1 AS (
    SELECT i_category, i_brand, s_store_name, s_company_name, d_year, d_moy, sum(ss_sales_price) AS sum_sales,
           avg(sum(ss_sales_price)) OVER (PARTITION BY i_category, i_brand, s_store_name, s_company_name, d_year)
             AS avg_monthly_sales,
           rank() OVER (PARTITION BY i_category, i_brand, s_store_name, s_company_name ORDER BY d_year, d_moy) AS rn
    FROM item, store_sales, date_dim, store
    WHERE ss_item_sk = i_item_sk AND ss_sold_date_sk = d_date_sk AND ss_store_sk = s_store_sk
      AND (d_year = 1999 OR d_year = 1998 AND d_moy = 12 OR d_year = 2000 AND d_moy = 1)
    GROUP BY i_category, i_brand, s_store_name, s_company_name, d_year, d_moy),
v2 AS (
    SELECT v1.i_category, v1.i_brand, v1.s_store_name, v1.s_company_name, v1.d_year, v1.d_moy, v1.avg_monthly_sales,
           v1.sum_sales, v1_lag.sum_sales AS psum, v1_lead.sum_sales AS nsum
    FROM v1, v1 v1_lag, v1 v1_lead
    WHERE v1.i_category = v1_lag.i_category AND v1.i_category = v1_lead.i_category AND v1.i_brand = v1_lag.i_brand
      AND v1.i_brand = v1_lead.i_brand AND v1.s_store_name = v1_lag.s_store_name
      AND v1.s_store_name = v1_lead.s_store_name AND v1.s_company_name = v1_lag.s_company_name
      AND v1.s_company_name = v1_lead.s_company_name AND v1.rn = v1_lag.rn + 1 AND v1.rn = v1_lead.rn - 1)
SELECT *
FROM v2
WHERE d_year = 1999 AND avg_monthly_sales > 0
  AND CASE WHEN avg_monthly_sales > 0 THEN abs(sum_sales - avg_monthly_sales) / avg_monthly_sales END > 0.1
ORDER BY sum_sales - avg_monthly_sales, s_store_name, i_category, i_brand, s_company_name, d_moy, psum, nsum LIMIT 100;

-- q48
SELECT sum(ss_quantity)
FROM store_sales, store, customer_demographics, customer_address, date_dim
WHERE s_store_sk = ss_store_sk AND ss_sold_date_sk = d_date_sk AND d_year = 2000
  AND (cd_demo_sk = ss_cdemo_sk AND cd_marital_status = 'M' AND cd_education_status = '4 yr Degree'
       AND ss_sales_price BETWEEN 100.00 AND 150.00
       OR cd_demo_sk = ss_cdemo_sk AND cd_marital_status = 'D' AND cd_education_status = '2 yr Degree'
       AND ss_sales_price BETWEEN 50.00 AND 100.00
       OR cd_demo_sk = ss_cdemo_sk AND cd_marital_status = 'S' AND cd_education_status = 'College'
       AND ss_sales_price BETWEEN 150.00 AND 200.00)
  AND (ss_addr_sk = ca_address_sk AND ca_country = 'United States' AND ca_state IN ('CO', 'OH', 'TX')
       AND ss_net_profit BETWEEN 0 AND 2000
       OR ss_addr_sk = ca_address_sk AND ca_country = 'United States' AND ca_state IN ('OR', 'MN', 'KY')
       AND ss_net_profit BETWEEN 150 AND 3000
       OR ss_addr_sk = ca_address_sk AND ca_country = 'United States' AND ca_state IN ('VA', 'CA', 'MS')
       AND ss_net_profit BETWEEN 50 AND 25000);

-- q49
SELECT channel, item, return_ratio, return_rank, currency_rank
FROM (SELECT 'web' AS channel, item, return_ratio, return_rank, currency_rank
      FROM (SELECT item, return_ratio, currency_ratio, rank() OVER (ORDER BY return_ratio) AS return_rank,
                   rank() OVER (ORDER BY currency_ratio) AS currency_rank
            FROM (SELECT ws_item_sk AS item,
                         CAST(sum(coalesce(wr_return_quantity, 0)) AS DECIMAL(15, 4))
                         / CAST(sum(coalesce(ws_quantity, 0)) AS DECIMAL(15, 4)) AS return_ratio,
                         CAST(sum(coalesce(wr_return_amt, 0)) AS DECIMAL(15, 4))
                         / CAST(sum(coalesce(ws_net_paid, 0)) AS DECIMAL(15, 4)) AS currency_ratio
                  FROM web_sales LEFT OUTER JOIN web_returns
                       ON ws_order_number = wr_order_number AND ws_item_sk = wr_item_sk, date_dim
                  WHERE wr_return_amt > 10000 AND ws_net_profit > 1 AND ws_net_paid > 0 AND ws_quantity > 0
                    AND ws_sold_date_sk = d_date_sk AND d_year = 2001 AND d_moy = 12
                  GROUP BY ws_item_sk) in_web) web
      WHERE return_rank <= 10 OR currency_rank <= 10
      UNION
      SELECT 'catalog', item, return_ratio, return_rank, currency_rank
      FROM (SELECT item, return_ratio, currency_ratio, rank() OVER (ORDER BY return_ratio) AS return_rank,
                   rank() OVER (ORDER BY currency_ratio) AS currency_rank
            FROM (SELECT cs_item_sk AS item,
                         CAST(sum(coalesce(cr_return_quantity, 0)) AS DECIMAL(15, 4))
                         / CAST(sum(coalesce(cs_quantity, 0)) AS DECIMAL(15, 4)) AS return_ratio,
                         CAST(sum(coalesce(cr_return_amount, 0)) AS DECIMAL(15, 4))
                         / CAST(sum(coalesce(cs_net_paid, 0)) AS DECIMAL(15, 4)) AS currency_ratio
                  FROM catalog_sales LEFT OUTER JOIN catalog_returns
                       ON cs_order_number = cr_order_number AND cs_item_sk = cr_item_sk, date_dim
                  WHERE cr_return_amount > 10000 AND cs_net_profit > 1 AND cs_net_paid > 0 AND cs_quantity > 0
                    AND cs_sold_date_sk = d_date_sk AND d_year = 2001 AND d_moy = 12
                  GROUP BY cs_item_sk) in_cat) catalog
      WHERE return_rank <= 10 OR currency_rank <= 10
      UNION
      SELECT 'store', item, return_ratio, return_rank, currency_rank
      FROM (SELECT item, return_ratio, currency_ratio, rank() OVER (ORDER BY return_ratio) AS return_rank,
                   rank() OVER (ORDER BY currency_ratio) AS currency_rank
            FROM (SELECT ss_item_sk AS item,
                         CAST(sum(coalesce(sr_return_quantity, 0)) AS DECIMAL(15, 4))
                         / CAST(sum(coalesce(ss_quantity, 0)) AS DECIMAL(15, 4)) AS return_ratio,
                         CAST(sum(coalesce(sr_return_amt, 0)) AS DECIMAL(15, 4))
                         / CAST(sum(coalesce(ss_net_paid, 0)) AS DECIMAL(15, 4)) AS currency_ratio
                  FROM store_sales LEFT OUTER JOIN store_returns
                       ON ss_ticket_number = sr_ticket_number AND ss_item_sk = sr_item_sk, date_dim
                  WHERE sr_return_amt > 10000 AND ss_net_profit > 1 AND ss_net_paid > 0 AND ss_quantity > 0
                    AND ss_sold_date_sk = d_date_sk AND d_year = 2001 AND d_moy = 12
                  GROUP BY ss_item_sk) in_store) store
      WHERE return_rank <= 10 OR currency_rank <= 10) x
ORDER BY channel, return_rank, currency_rank, item LIMIT 100;

-- q50
SELECT s_store_name, s_company_id, s_street_number, s_street_name, s_street_type, s_suite_number, s_city, s_county,
       s_state, s_zip, sum(CASE WHEN sr_returned_date_sk - ss_sold_date_sk <= 30 THEN 1 ELSE 0 END) AS `30 days`,
       sum(CASE WHEN sr_returned_date_sk - ss_sold_date_sk > 30 AND sr_returned_date_sk - ss_sold_date_sk <= 60
                THEN 1 ELSE 0 END) AS `31-60 days`,
       sum(CASE WHEN sr_returned_date_sk - ss_sold_date_sk > 60 AND sr_returned_date_sk - ss_sold_date_sk <= 90
                THEN 1 ELSE 0 END) AS `61-90 days`,
       sum(CASE WHEN sr_returned_date_sk - ss_sold_date_sk > 90 AND sr_returned_date_sk - ss_sold_date_sk <= 120
                THEN 1 ELSE 0 END) AS `91-120 days`,
       sum(CASE WHEN sr_returned_date_sk - ss_sold_date_sk > 120 THEN 1 ELSE 0 END) AS `>120 days`
FROM store_sales, store_returns, store, date_dim d1, date_dim d2
WHERE d2.d_year = 2001 AND d2.d_moy = 8 AND ss_ticket_number = sr_ticket_number AND ss_item_sk = sr_item_sk
  AND ss_sold_date_sk = d1.d_date_sk AND sr_returned_date_sk = d2.d_date_sk AND ss_customer_sk = sr_customer_sk
  AND ss_store_sk = s_store_sk
GROUP BY s_store_name, s_company_id, s_street_number, s_street_name, s_street_type, s_suite_number, s_city, s_county,
         s_state, s_zip
ORDER BY s_store_name, s_company_id, s_street_number, s_street_name, s_street_type, s_suite_number, s_city, s_county,
         s_state, s_zip LIMIT 100;

-- q51
WITH web_v1 AS (
    SELECT ws_item_sk AS item_sk, d_date,
           sum(sum(ws_sales_price)) OVER (PARTITION BY ws_item_sk ORDER BY d_date
                                          ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS cume_sales
    FROM web_sales, date_dim
    WHERE ws_sold_date_sk = d_date_sk AND d_month_seq BETWEEN 1200 AND 1200 + 11 AND ws_item_sk IS NOT NULL
    GROUP BY ws_item_sk, d_date),
store_v1 AS (
    SELECT ss_item_sk AS item_sk, d_date,
           sum(sum(ss_sales_price)) OVER (PARTITION BY ss_item_sk ORDER BY d_date
                                          ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS cume_sales
    FROM store_sales, date_dim
    WHERE ss_sold_date_sk = d_date_sk AND d_month_seq BETWEEN 1200 AND 1200 + 11 AND ss_item_sk IS NOT NULL
    GROUP BY ss_item_sk, d_date)
SELECT *
FROM (SELECT item_sk, d_date, web_sales, store_sales,
             max(web_sales) OVER (PARTITION BY item_sk ORDER BY d_date
                                  ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS web_cumulative,
             max(store_sales) OVER (PARTITION BY item_sk ORDER BY d_date
                                    ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS store_cumulative
      FROM (SELECT coalesce(web.item_sk, store.item_sk) AS item_sk, coalesce(web.d_date, store.d_date) AS d_date,
                   web.cume_sales AS web_sales, store.cume_sales AS store_sales
            FROM web_v1 web FULL OUTER JOIN store_v1 store
                 ON web.item_sk = store.item_sk AND web.d_date = store.d_date) x) y
WHERE web_cumulative > store_cumulative
ORDER BY item_sk, d_date LIMIT 100;

-- q52
SELECT d_year, i_brand_id AS brand_id, i_brand AS brand, sum(ss_ext_sales_price) AS ext_price
FROM date_dim, store_sales, item
WHERE d_date_sk = ss_sold_date_sk AND ss_item_sk = i_item_sk AND i_manager_id = 1 AND d_moy = 11 AND d_year = 2000
GROUP BY d_year, i_brand, i_brand_id
ORDER BY d_year, ext_price DESC, brand_id, brand LIMIT 100;

-- q53
SELECT *
FROM (SELECT i_manufact_id, sum(ss_sales_price) AS sum_sales,
             avg(sum(ss_sales_price)) OVER (PARTITION BY i_manufact_id) AS avg_quarterly_sales
      FROM item, store_sales, date_dim, store
      WHERE ss_item_sk = i_item_sk AND ss_sold_date_sk = d_date_sk AND ss_store_sk = s_store_sk
        AND d_month_seq BETWEEN 1200 AND 1200 + 11
        AND (i_category IN ('Books', 'Children', 'Electronics')
             AND i_class IN ('personal', 'portable', 'reference', 'self-help')
             AND i_brand IN ('scholaramalgamalg #14', 'scholaramalgamalg #7', 'exportiunivamalg #9',
                             'scholaramalgamalg #9')
             OR i_category IN ('Women', 'Music', 'Men')
             AND i_class IN ('accessories', 'classical', 'fragrances', 'pants')
             AND i_brand IN ('amalgimporto #1', 'edu packscholar #1', 'exportiimporto #1', 'importoamalg #1'))
      GROUP BY i_manufact_id, d_qoy) tmp1
WHERE CASE WHEN avg_quarterly_sales > 0 THEN abs(sum_sales - avg_quarterly_sales) / avg_quarterly_sales END > 0.1
ORDER BY avg_quarterly_sales, sum_sales, i_manufact_id LIMIT 100;

-- q54
WITH my_customers AS (
    SELECT DISTINCT c_customer_sk, c_current_addr_sk
    FROM (SELECT cs_sold_date_sk AS sold_date_sk, cs_bill_customer_sk AS customer_sk, cs_item_sk AS item_sk
          FROM catalog_sales
          UNION ALL
          SELECT ws_sold_date_sk, ws_bill_customer_sk, ws_item_sk FROM web_sales) cs_or_ws_sales,
         item, date_dim, customer
    WHERE sold_date_sk = d_date_sk AND item_sk = i_item_sk AND i_category = 'Women' AND i_class = 'maternity'
      AND c_customer_sk = customer_sk AND d_moy = 12 AND d_year = 1998),
my_revenue AS (
    SELECT c_customer_sk, sum(ss_ext_sales_price) AS revenue
    FROM my_customers, store_sales, customer_address, store, date_dim
    WHERE c_current_addr_sk = ca_address_sk AND ca_county = s_county AND ca_state = s_state
      AND ss_sold_date_sk = d_date_sk AND c_customer_sk = ss_customer_sk
      AND d_month_seq BETWEEN (SELECT DISTINCT d_month_seq + 1 FROM date_dim WHERE d_year = 1998 AND d_moy = 12)
                          AND (SELECT DISTINCT d_month_seq + 3 FROM date_dim WHERE d_year = 1998 AND d_moy = 12)
    GROUP BY c_customer_sk),
segments AS (SELECT CAST(revenue / 50 AS INT) AS segment FROM my_revenue)
SELECT segment, count(*) AS num_customers, segment * 50 AS segment_base
FROM segments
GROUP BY segment
ORDER BY segment, num_customers LIMIT 100;

-- q55
SELECT i_brand_id AS brand_id, i_brand AS brand, sum(ss_ext_sales_price) AS ext_price
FROM date_dim, store_sales, item
WHERE d_date_sk = ss_sold_date_sk AND ss_item_sk = i_item_sk AND i_manager_id = 28 AND d_moy = 11 AND d_year = 1999
GROUP BY i_brand, i_brand_id
ORDER BY ext_price DESC, brand_id, brand LIMIT 100;

-- q56
WITH ss AS (
    SELECT i_item_id, sum(ss_ext_sales_price) AS total_sales
    FROM store_sales, date_dim, customer_address, item
    WHERE i_item_id IN (SELECT i_item_id FROM item WHERE i_color IN ('slate', 'blanched', 'burnished'))
      AND ss_item_sk = i_item_sk AND ss_sold_date_sk = d_date_sk AND d_year = 2001 AND d_moy = 2
      AND ss_addr_sk = ca_address_sk AND ca_gmt_offset = -5
    GROUP BY i_item_id),
cs AS (
    SELECT i_item_id, sum(cs_ext_sales_price) AS total_sales
    FROM catalog_sales, date_dim, customer_address, item
    WHERE i_item_id IN (SELECT i_item_id FROM item WHERE i_color IN ('slate', 'blanched', 'burnished'))
      AND cs_item_sk = i_item_sk AND cs_sold_date_sk = d_date_sk AND d_year = 2001 AND d_moy = 2
      AND cs_bill_addr_sk = ca_address_sk AND ca_gmt_offset = -5
    GROUP BY i_item_id),
ws AS (
    SELECT i_item_id, sum(ws_ext_sales_price) AS total_sales
    FROM web_sales, date_dim, customer_address, item
    WHERE i_item_id IN (SELECT i_item_id FROM item WHERE i_color IN ('slate', 'blanched', 'burnished'))
      AND ws_item_sk = i_item_sk AND ws_sold_date_sk = d_date_sk AND d_year = 2001 AND d_moy = 2
      AND ws_bill_addr_sk = ca_address_sk AND ca_gmt_offset = -5
    GROUP BY i_item_id)
SELECT i_item_id, sum(total_sales) AS total_sales
FROM (SELECT * FROM ss UNION ALL SELECT * FROM cs UNION ALL SELECT * FROM ws) tmp1
GROUP BY i_item_id
ORDER BY total_sales, i_item_id LIMIT 100;

-- q57
WITH v1 AS (
    SELECT i_category, i_brand, cc_name, d_year, d_moy, sum(cs_sales_price) AS sum_sales,
           avg(sum(cs_sales_price)) OVER (PARTITION BY i_category, i_brand, cc_name, d_year) AS avg_monthly_sales,
           rank() OVER (PARTITION BY i_category, i_brand, cc_name ORDER BY d_year, d_moy) AS rn
    FROM item, catalog_sales, date_dim, call_center
    WHERE cs_item_sk = i_item_sk AND cs_sold_date_sk = d_date_sk AND cc_call_center_sk = cs_call_center_sk
      AND (d_year = 1999 OR d_year = 1998 AND d_moy = 12 OR d_year = 2000 AND d_moy = 1)
    GROUP BY i_category, i_brand, cc_name, d_year, d_moy),
v2 AS (
    SELECT v1.i_category, v1.i_brand, v1.cc_name, v1.d_year, v1.d_moy, v1.avg_monthly_sales, v1.sum_sales,
           v1_lag.sum_sales AS psum, v1_lead.sum_sales AS nsum
    FROM v1, v1 v1_lag, v1 v1_lead
    WHERE v1.i_category = v1_lag.i_category AND v1.i_category = v1_lead.i_category AND v1.i_brand = v1_lag.i_brand
      AND v1.i_brand = v1_lead.i_brand AND v1.cc_name = v1_lag.cc_name AND v1.cc_name = v1_lead.cc_name
      AND v1.rn = v1_lag.rn + 1 AND v1.rn = v1_lead.rn - 1)
SELECT *
FROM v2
WHERE d_year = 1999 AND avg_monthly_sales > 0
  AND CASE WHEN avg_monthly_sales > 0 THEN abs(sum_sales - avg_monthly_sales) / avg_monthly_sales END > 0.1
ORDER BY sum_sales - avg_monthly_sales, cc_name, i_category, i_brand, d_moy, psum, nsum LIMIT 100;

-- q58
WITH ss_items AS (
    SELECT i_item_id AS item_id, sum(ss_ext_sales_price) AS ss_item_rev
    FROM store_sales, item, date_dim
    WHERE ss_item_sk = i_item_sk AND ss_sold_date_sk = d_date_sk
      AND d_date IN (SELECT d_date FROM date_dim
                     WHERE d_week_seq = (SELECT d_week_seq FROM date_dim WHERE d_date = DATE '2000-01-03'))
    GROUP BY i_item_id),
cs_items AS (
    SELECT i_item_id AS item_id, sum(cs_ext_sales_price) AS cs_item_rev
    FROM catalog_sales, item, date_dim
    WHERE cs_item_sk = i_item_sk AND cs_sold_date_sk = d_date_sk
      AND d_date IN (SELECT d_date FROM date_dim
                     WHERE d_week_seq = (SELECT d_week_seq FROM date_dim WHERE d_date = DATE '2000-01-03'))
    GROUP BY i_item_id),
ws_items AS (
    SELECT i_item_id AS item_id, sum(ws_ext_sales_price) AS ws_item_rev
    FROM web_sales, item, date_dim
    WHERE ws_item_sk = i_item_sk AND ws_sold_date_sk = d_date_sk
      AND d_date IN (SELECT d_date FROM date_dim
                     WHERE d_week_seq = (SELECT d_week_seq FROM date_dim WHERE d_date = DATE '2000-01-03'))
    GROUP BY i_item_id)
SELECT ss_items.item_id, ss_item_rev, ss_item_rev / ((ss_item_rev + cs_item_rev + ws_item_rev) / 3) * 100 AS ss_dev,
       cs_item_rev, cs_item_rev / ((ss_item_rev + cs_item_rev + ws_item_rev) / 3) * 100 AS cs_dev,
       ws_item_rev, ws_item_rev / ((ss_item_rev + cs_item_rev + ws_item_rev) / 3) * 100 AS ws_dev,
       (ss_item_rev + cs_item_rev + ws_item_rev) / 3 AS average
FROM ss_items, cs_items, ws_items
WHERE ss_items.item_id = cs_items.item_id AND ss_items.item_id = ws_items.item_id
  AND ss_item_rev BETWEEN 0.9 * cs_item_rev AND 1.1 * cs_item_rev
  AND ss_item_rev BETWEEN 0.9 * ws_item_rev AND 1.1 * ws_item_rev
  AND cs_item_rev BETWEEN 0.9 * ss_item_rev AND 1.1 * ss_item_rev
  AND cs_item_rev BETWEEN 0.9 * ws_item_rev AND 1.1 * ws_item_rev
  AND ws_item_rev BETWEEN 0.9 * ss_item_rev AND 1.1 * ss_item_rev
  AND ws_item_rev BETWEEN 0.9 * cs_item_rev AND 1.1 * cs_item_rev
ORDER BY ss_items.item_id, ss_item_rev LIMIT 100;

-- q59
WITH wss AS (
    SELECT d_week_seq, ss_store_sk,
           sum(CASE WHEN d_day_name = 'Sunday' THEN ss_sales_price END) AS sun_sales,
           sum(CASE WHEN d_day_name = 'Monday' THEN ss_sales_price END) AS mon_sales,
           sum(CASE WHEN d_day_name = 'Tuesday' THEN ss_sales_price END) AS tue_sales,
           sum(CASE WHEN d_day_name = 'Wednesday' THEN ss_sales_price END) AS wed_sales,
           sum(CASE WHEN d_day_name = 'Thursday' THEN ss_sales_price END) AS thu_sales,
           sum(CASE WHEN d_day_name = 'Friday' THEN ss_sales_price END) AS fri_sales,
           sum(CASE WHEN d_day_name = 'Saturday' THEN ss_sales_price END) AS sat_sales
    FROM store_sales, date_dim WHERE d_date_sk = ss_sold_date_sk GROUP BY d_week_seq, ss_store_sk)
SELECT y.s_store_name, y.s_store_id, y.d_week_seq, y.sun_sales / x.sun_sales, y.mon_sales / x.mon_sales,
       y.tue_sales / x.tue_sales, y.wed_sales / x.wed_sales, y.thu_sales / x.thu_sales, y.fri_sales / x.fri_sales,
       y.sat_sales / x.sat_sales
FROM (SELECT s_store_name, s_store_id, wss.* FROM wss, store, date_dim d
      WHERE d.d_week_seq = wss.d_week_seq AND ss_store_sk = s_store_sk AND d_month_seq BETWEEN 1212 AND 1212 + 11) y,
     (SELECT s_store_name, s_store_id, wss.* FROM wss, store, date_dim d
      WHERE d.d_week_seq = wss.d_week_seq AND ss_store_sk = s_store_sk
        AND d_month_seq BETWEEN 1212 + 12 AND 1212 + 23) x
WHERE y.s_store_id = x.s_store_id AND y.d_week_seq = x.d_week_seq - 52
ORDER BY y.s_store_name, y.s_store_id, y.d_week_seq LIMIT 100;

-- q60
WITH ss AS (
    SELECT i_item_id, sum(ss_ext_sales_price) AS total_sales
    FROM store_sales, date_dim, customer_address, item
    WHERE i_item_id IN (SELECT i_item_id FROM item WHERE i_category IN ('Music'))
      AND ss_item_sk = i_item_sk AND ss_sold_date_sk = d_date_sk AND d_year = 1998 AND d_moy = 9
      AND ss_addr_sk = ca_address_sk AND ca_gmt_offset = -5
    GROUP BY i_item_id),
cs AS (
    SELECT i_item_id, sum(cs_ext_sales_price) AS total_sales
    FROM catalog_sales, date_dim, customer_address, item
    WHERE i_item_id IN (SELECT i_item_id FROM item WHERE i_category IN ('Music'))
      AND cs_item_sk = i_item_sk AND cs_sold_date_sk = d_date_sk AND d_year = 1998 AND d_moy = 9
      AND cs_bill_addr_sk = ca_address_sk AND ca_gmt_offset = -5
    GROUP BY i_item_id),
ws AS (
    SELECT i_item_id, sum(ws_ext_sales_price) AS total_sales
    FROM web_sales, date_dim, customer_address, item
    WHERE i_item_id IN (SELECT i_item_id FROM item WHERE i_category IN ('Music'))
      AND ws_item_sk = i_item_sk AND ws_sold_date_sk = d_date_sk AND d_year = 1998 AND d_moy = 9
      AND ws_bill_addr_sk = ca_address_sk AND ca_gmt_offset = -5
    GROUP BY i_item_id)
SELECT i_item_id, sum(total_sales) AS total_sales
FROM (SELECT * FROM ss UNION ALL SELECT * FROM cs UNION ALL SELECT * FROM ws) tmp1
GROUP BY i_item_id
ORDER BY i_item_id, total_sales LIMIT 100;

-- q61
SELECT promotions, total, CAST(promotions AS DECIMAL(15, 4)) / CAST(total AS DECIMAL(15, 4)) * 100
FROM (SELECT sum(ss_ext_sales_price) AS promotions
      FROM store_sales, store, promotion, date_dim, customer, customer_address, item
      WHERE ss_sold_date_sk = d_date_sk AND ss_store_sk = s_store_sk AND ss_promo_sk = p_promo_sk
        AND ss_customer_sk = c_customer_sk AND ca_address_sk = c_current_addr_sk AND ss_item_sk = i_item_sk
        AND ca_gmt_offset = -5 AND i_category = 'Jewelry'
        AND (p_channel_dmail = 'Y' OR p_channel_email = 'Y' OR p_channel_tv = 'Y')
        AND s_gmt_offset = -5 AND d_year = 1998 AND d_moy = 11) promotional_sales,
     (SELECT sum(ss_ext_sales_price) AS total
      FROM store_sales, store, date_dim, customer, customer_address, item
      WHERE ss_sold_date_sk = d_date_sk AND ss_store_sk = s_store_sk AND ss_customer_sk = c_customer_sk
        AND ca_address_sk = c_current_addr_sk AND ss_item_sk = i_item_sk AND ca_gmt_offset = -5
        AND i_category = 'Jewelry' AND s_gmt_offset = -5 AND d_year = 1998 AND d_moy = 11) all_sales
ORDER BY promotions, total LIMIT 100;

-- q62
SELECT substring(w_warehouse_name, 1, 20) AS warehouse, sm_type, web_name,
       sum(CASE WHEN ws_ship_date_sk - ws_sold_date_sk <= 30 THEN 1 ELSE 0 END) AS `30 days`,
       sum(CASE WHEN ws_ship_date_sk - ws_sold_date_sk > 30 AND ws_ship_date_sk - ws_sold_date_sk <= 60
                THEN 1 ELSE 0 END) AS `31-60 days`,
       sum(CASE WHEN ws_ship_date_sk - ws_sold_date_sk > 60 AND ws_ship_date_sk - ws_sold_date_sk <= 90
                THEN 1 ELSE 0 END) AS `61-90 days`,
       sum(CASE WHEN ws_ship_date_sk - ws_sold_date_sk > 90 AND ws_ship_date_sk - ws_sold_date_sk <= 120
                THEN 1 ELSE 0 END) AS `91-120 days`,
       sum(CASE WHEN ws_ship_date_sk - ws_sold_date_sk > 120 THEN 1 ELSE 0 END) AS `>120 days`
FROM web_sales, warehouse, ship_mode, web_site, date_dim
WHERE d_month_seq BETWEEN 1200 AND 1200 + 11 AND ws_ship_date_sk = d_date_sk AND ws_warehouse_sk = w_warehouse_sk
  AND ws_ship_mode_sk = sm_ship_mode_sk AND ws_web_site_sk = web_site_sk
GROUP BY substring(w_warehouse_name, 1, 20), sm_type, web_name
ORDER BY warehouse, sm_type, web_name LIMIT 100;

-- q63
SELECT *
FROM (SELECT i_manager_id, sum(ss_sales_price) AS sum_sales,
             avg(sum(ss_sales_price)) OVER (PARTITION BY i_manager_id) AS avg_monthly_sales
      FROM item, store_sales, date_dim, store
      WHERE ss_item_sk = i_item_sk AND ss_sold_date_sk = d_date_sk AND ss_store_sk = s_store_sk
        AND d_month_seq BETWEEN 1200 AND 1200 + 11
        AND (i_category IN ('Books', 'Children', 'Electronics')
             AND i_class IN ('personal', 'portable', 'reference', 'self-help')
             AND i_brand IN ('scholaramalgamalg #14', 'scholaramalgamalg #7', 'exportiunivamalg #9',
                             'scholaramalgamalg #9')
             OR i_category IN ('Women', 'Music', 'Men')
             AND i_class IN ('accessories', 'classical', 'fragrances', 'pants')
             AND i_brand IN ('amalgimporto #1', 'edu packscholar #1', 'exportiimporto #1', 'importoamalg #1'))
      GROUP BY i_manager_id, d_moy) tmp1
WHERE CASE WHEN avg_monthly_sales > 0 THEN abs(sum_sales - avg_monthly_sales) / avg_monthly_sales END > 0.1
ORDER BY i_manager_id, avg_monthly_sales, sum_sales LIMIT 100;

-- q64
WITH cs_ui AS (
    SELECT cs_item_sk, sum(cs_ext_list_price) AS sale,
           sum(cr_refunded_cash + cr_reversed_charge + cr_store_credit) AS refund
    FROM catalog_sales, catalog_returns
    WHERE cs_item_sk = cr_item_sk AND cs_order_number = cr_order_number
    GROUP BY cs_item_sk
    HAVING sum(cs_ext_list_price) > 2 * sum(cr_refunded_cash + cr_reversed_charge + cr_store_credit)),
cross_sales AS (
    SELECT i_product_name AS product_name, i_item_sk AS item_sk, s_store_name AS store_name, s_zip AS store_zip,
           ad1.ca_street_number AS b_street_number, ad1.ca_street_name AS b_street_name, ad1.ca_city AS b_city,
           ad1.ca_zip AS b_zip, ad2.ca_street_number AS c_street_number, ad2.ca_street_name AS c_street_name,
           ad2.ca_city AS c_city, ad2.ca_zip AS c_zip, d1.d_year AS syear, d2.d_year AS fsyear, d3.d_year AS s2year,
           count(*) AS cnt, sum(ss_wholesale_cost) AS s1, sum(ss_list_price) AS s2, sum(ss_coupon_amt) AS s3
    FROM store_sales, store_returns, cs_ui, date_dim d1, date_dim d2, date_dim d3, store, customer,
         customer_demographics cd1, customer_demographics cd2, promotion, household_demographics hd1,
         household_demographics hd2, customer_address ad1, customer_address ad2, income_band ib1, income_band ib2, item
    WHERE ss_store_sk = s_store_sk AND ss_sold_date_sk = d1.d_date_sk AND ss_customer_sk = c_customer_sk
      AND ss_cdemo_sk = cd1.cd_demo_sk AND ss_hdemo_sk = hd1.hd_demo_sk AND ss_addr_sk = ad1.ca_address_sk
      AND ss_item_sk = i_item_sk AND ss_item_sk = sr_item_sk AND ss_ticket_number = sr_ticket_number
      AND ss_item_sk = cs_ui.cs_item_sk AND c_current_cdemo_sk = cd2.cd_demo_sk
      AND c_current_hdemo_sk = hd2.hd_demo_sk AND c_current_addr_sk = ad2.ca_address_sk
      AND c_first_sales_date_sk = d2.d_date_sk AND c_first_shipto_date_sk = d3.d_date_sk AND ss_promo_sk = p_promo_sk
      AND hd1.hd_income_band_sk = ib1.ib_income_band_sk AND hd2.hd_income_band_sk = ib2.ib_income_band_sk
      AND cd1.cd_marital_status <> cd2.cd_marital_status
      AND i_color IN ('sky', 'salmon', 'red', 'sienna', 'thistle', 'tan')
      AND i_current_price BETWEEN 2 AND 2 + 10 AND i_current_price BETWEEN 2 + 1 AND 2 + 15
    GROUP BY i_product_name, i_item_sk, s_store_name, s_zip, ad1.ca_street_number, ad1.ca_street_name, ad1.ca_city,
             ad1.ca_zip, ad2.ca_street_number, ad2.ca_street_name, ad2.ca_city, ad2.ca_zip, d1.d_year, d2.d_year,
             d3.d_year)
SELECT cs1.product_name, cs1.store_name, cs1.store_zip, cs1.b_street_number, cs1.b_street_name, cs1.b_city, cs1.b_zip,
       cs1.c_street_number, cs1.c_street_name, cs1.c_city, cs1.c_zip, cs1.syear, cs1.cnt, cs1.s1 AS s11, cs1.s2 AS s21,
       cs1.s3 AS s31, cs2.s1 AS s12, cs2.s2 AS s22, cs2.s3 AS s32, cs2.syear AS syear2, cs2.cnt AS cnt2
FROM cross_sales cs1, cross_sales cs2
WHERE cs1.item_sk = cs2.item_sk AND cs1.syear = 1999 AND cs2.syear = 1999 + 1 AND cs2.cnt <= cs1.cnt
  AND cs1.store_name = cs2.store_name AND cs1.store_zip = cs2.store_zip
ORDER BY cs1.product_name, cs1.store_name, cs2.cnt, s11, s12, s21, s31, s22, s32, cs1.b_street_number,
         cs1.c_street_number;

-- q65
SELECT s_store_name, i_item_desc, sc.revenue, i_current_price, i_wholesale_cost, i_brand
FROM store, item,
     (SELECT ss_store_sk, avg(revenue) AS ave
      FROM (SELECT ss_store_sk, ss_item_sk, sum(ss_sales_price) AS revenue FROM store_sales, date_dim
            WHERE ss_sold_date_sk = d_date_sk AND d_month_seq BETWEEN 1176 AND 1176 + 11
            GROUP BY ss_store_sk, ss_item_sk) sa
      GROUP BY ss_store_sk) sb,
     (SELECT ss_store_sk, ss_item_sk, sum(ss_sales_price) AS revenue FROM store_sales, date_dim
      WHERE ss_sold_date_sk = d_date_sk AND d_month_seq BETWEEN 1176 AND 1176 + 11
      GROUP BY ss_store_sk, ss_item_sk) sc
WHERE sb.ss_store_sk = sc.ss_store_sk AND sc.revenue <= 0.1 * sb.ave AND s_store_sk = sc.ss_store_sk
  AND i_item_sk = sc.ss_item_sk
ORDER BY s_store_name, i_item_desc, sc.revenue, i_current_price, i_wholesale_cost, i_brand LIMIT 100;

-- q66
SELECT w_warehouse_name, w_warehouse_sq_ft, w_city, w_county, w_state, w_country, ship_carriers, year,
       sum(jan_sales) AS jan_sales, sum(feb_sales) AS feb_sales, sum(mar_sales) AS mar_sales,
       sum(apr_sales) AS apr_sales, sum(may_sales) AS may_sales, sum(jun_sales) AS jun_sales,
       sum(jul_sales) AS jul_sales, sum(aug_sales) AS aug_sales, sum(sep_sales) AS sep_sales,
       sum(oct_sales) AS oct_sales, sum(nov_sales) AS nov_sales, sum(dec_sales) AS dec_sales,
       sum(jan_sales / w_warehouse_sq_ft) AS jan_sales_per_sq_foot,
       sum(feb_sales / w_warehouse_sq_ft) AS feb_sales_per_sq_foot,
       sum(mar_sales / w_warehouse_sq_ft) AS mar_sales_per_sq_foot,
       sum(apr_sales / w_warehouse_sq_ft) AS apr_sales_per_sq_foot,
       sum(may_sales / w_warehouse_sq_ft) AS may_sales_per_sq_foot,
       sum(jun_sales / w_warehouse_sq_ft) AS jun_sales_per_sq_foot,
       sum(jul_sales / w_warehouse_sq_ft) AS jul_sales_per_sq_foot,
       sum(aug_sales / w_warehouse_sq_ft) AS aug_sales_per_sq_foot,
       sum(sep_sales / w_warehouse_sq_ft) AS sep_sales_per_sq_foot,
       sum(oct_sales / w_warehouse_sq_ft) AS oct_sales_per_sq_foot,
       sum(nov_sales / w_warehouse_sq_ft) AS nov_sales_per_sq_foot,
       sum(dec_sales / w_warehouse_sq_ft) AS dec_sales_per_sq_foot,
       sum(jan_net) AS jan_net, sum(feb_net) AS feb_net, sum(mar_net) AS mar_net, sum(apr_net) AS apr_net,
       sum(may_net) AS may_net, sum(jun_net) AS jun_net, sum(jul_net) AS jul_net, sum(aug_net) AS aug_net,
       sum(sep_net) AS sep_net, sum(oct_net) AS oct_net, sum(nov_net) AS nov_net, sum(dec_net) AS dec_net
FROM (SELECT w_warehouse_name, w_warehouse_sq_ft, w_city, w_county, w_state, w_country,
             concat('DHL', ',', 'BARIAN') AS ship_carriers, d_year AS year,
             sum(CASE WHEN d_moy = 1 THEN ws_ext_sales_price * ws_quantity ELSE 0 END) AS jan_sales,
             sum(CASE WHEN d_moy = 2 THEN ws_ext_sales_price * ws_quantity ELSE 0 END) AS feb_sales,
             sum(CASE WHEN d_moy = 3 THEN ws_ext_sales_price * ws_quantity ELSE 0 END) AS mar_sales,
             sum(CASE WHEN d_moy = 4 THEN ws_ext_sales_price * ws_quantity ELSE 0 END) AS apr_sales,
             sum(CASE WHEN d_moy = 5 THEN ws_ext_sales_price * ws_quantity ELSE 0 END) AS may_sales,
             sum(CASE WHEN d_moy = 6 THEN ws_ext_sales_price * ws_quantity ELSE 0 END) AS jun_sales,
             sum(CASE WHEN d_moy = 7 THEN ws_ext_sales_price * ws_quantity ELSE 0 END) AS jul_sales,
             sum(CASE WHEN d_moy = 8 THEN ws_ext_sales_price * ws_quantity ELSE 0 END) AS aug_sales,
             sum(CASE WHEN d_moy = 9 THEN ws_ext_sales_price * ws_quantity ELSE 0 END) AS sep_sales,
             sum(CASE WHEN d_moy = 10 THEN ws_ext_sales_price * ws_quantity ELSE 0 END) AS oct_sales,
             sum(CASE WHEN d_moy = 11 THEN ws_ext_sales_price * ws_quantity ELSE 0 END) AS nov_sales,
             sum(CASE WHEN d_moy = 12 THEN ws_ext_sales_price * ws_quantity ELSE 0 END) AS dec_sales,
             sum(CASE WHEN d_moy = 1 THEN ws_net_paid * ws_quantity ELSE 0 END) AS jan_net,
             sum(CASE WHEN d_moy = 2 THEN ws_net_paid * ws_quantity ELSE 0 END) AS feb_net,
             sum(CASE WHEN d_moy = 3 THEN ws_net_paid * ws_quantity ELSE 0 END) AS mar_net,
             sum(CASE WHEN d_moy = 4 THEN ws_net_paid * ws_quantity ELSE 0 END) AS apr_net,
             sum(CASE WHEN d_moy = 5 THEN ws_net_paid * ws_quantity ELSE 0 END) AS may_net,
             sum(CASE WHEN d_moy = 6 THEN ws_net_paid * ws_quantity ELSE 0 END) AS jun_net,
             sum(CASE WHEN d_moy = 7 THEN ws_net_paid * ws_quantity ELSE 0 END) AS jul_net,
             sum(CASE WHEN d_moy = 8 THEN ws_net_paid * ws_quantity ELSE 0 END) AS aug_net,
             sum(CASE WHEN d_moy = 9 THEN ws_net_paid * ws_quantity ELSE 0 END) AS sep_net,
             sum(CASE WHEN d_moy = 10 THEN ws_net_paid * ws_quantity ELSE 0 END) AS oct_net,
             sum(CASE WHEN d_moy = 11 THEN ws_net_paid * ws_quantity ELSE 0 END) AS nov_net,
             sum(CASE WHEN d_moy = 12 THEN ws_net_paid * ws_quantity ELSE 0 END) AS dec_net
      FROM web_sales, warehouse, date_dim, time_dim, ship_mode
      WHERE ws_warehouse_sk = w_warehouse_sk AND ws_sold_date_sk = d_date_sk AND ws_sold_time_sk = t_time_sk
        AND ws_ship_mode_sk = sm_ship_mode_sk AND d_year = 2001 AND t_time BETWEEN 30838 AND 30838 + 28800
        AND sm_carrier IN ('DHL', 'BARIAN')
      GROUP BY w_warehouse_name, w_warehouse_sq_ft, w_city, w_county, w_state, w_country, d_year
      UNION ALL
      SELECT w_warehouse_name, w_warehouse_sq_ft, w_city, w_county, w_state, w_country,
             concat('DHL', ',', 'BARIAN'), d_year,
             sum(CASE WHEN d_moy = 1 THEN cs_sales_price * cs_quantity ELSE 0 END),
             sum(CASE WHEN d_moy = 2 THEN cs_sales_price * cs_quantity ELSE 0 END),
             sum(CASE WHEN d_moy = 3 THEN cs_sales_price * cs_quantity ELSE 0 END),
             sum(CASE WHEN d_moy = 4 THEN cs_sales_price * cs_quantity ELSE 0 END),
             sum(CASE WHEN d_moy = 5 THEN cs_sales_price * cs_quantity ELSE 0 END),
             sum(CASE WHEN d_moy = 6 THEN cs_sales_price * cs_quantity ELSE 0 END),
             sum(CASE WHEN d_moy = 7 THEN cs_sales_price * cs_quantity ELSE 0 END),
             sum(CASE WHEN d_moy = 8 THEN cs_sales_price * cs_quantity ELSE 0 END),
             sum(CASE WHEN d_moy = 9 THEN cs_sales_price * cs_quantity ELSE 0 END),
             sum(CASE WHEN d_moy = 10 THEN cs_sales_price * cs_quantity ELSE 0 END),
             sum(CASE WHEN d_moy = 11 THEN cs_sales_price * cs_quantity ELSE 0 END),
             sum(CASE WHEN d_moy = 12 THEN cs_sales_price * cs_quantity ELSE 0 END),
             sum(CASE WHEN d_moy = 1 THEN cs_net_paid_inc_tax * cs_quantity ELSE 0 END),
             sum(CASE WHEN d_moy = 2 THEN cs_net_paid_inc_tax * cs_quantity ELSE 0 END),
             sum(CASE WHEN d_moy = 3 THEN cs_net_paid_inc_tax * cs_quantity ELSE 0 END),
             sum(CASE WHEN d_moy = 4 THEN cs_net_paid_inc_tax * cs_quantity ELSE 0 END),
             sum(CASE WHEN d_moy = 5 THEN cs_net_paid_inc_tax * cs_quantity ELSE 0 END),
             sum(CASE WHEN d_moy = 6 THEN cs_net_paid_inc_tax * cs_quantity ELSE 0 END),
             sum(CASE WHEN d_moy = 7 THEN cs_net_paid_inc_tax * cs_quantity ELSE 0 END),
             sum(CASE WHEN d_moy = 8 THEN cs_net_paid_inc_tax * cs_quantity ELSE 0 END),
             sum(CASE WHEN d_moy = 9 THEN cs_net_paid_inc_tax * cs_quantity ELSE 0 END),
             sum(CASE WHEN d_moy = 10 THEN cs_net_paid_inc_tax * cs_quantity ELSE 0 END),
             sum(CASE WHEN d_moy = 11 THEN cs_net_paid_inc_tax * cs_quantity ELSE 0 END),
             sum(CASE WHEN d_moy = 12 THEN cs_net_paid_inc_tax * cs_quantity ELSE 0 END)
      FROM catalog_sales, warehouse, date_dim, time_dim, ship_mode
      WHERE cs_warehouse_sk = w_warehouse_sk AND cs_sold_date_sk = d_date_sk AND cs_sold_time_sk = t_time_sk
        AND cs_ship_mode_sk = sm_ship_mode_sk AND d_year = 2001 AND t_time BETWEEN 30838 AND 30838 + 28800
        AND sm_carrier IN ('DHL', 'BARIAN')
      GROUP BY w_warehouse_name, w_warehouse_sq_ft, w_city, w_county, w_state, w_country, d_year) x
GROUP BY w_warehouse_name, w_warehouse_sq_ft, w_city, w_county, w_state, w_country, ship_carriers, year
ORDER BY w_warehouse_name, w_warehouse_sq_ft, w_city, w_county, w_state, w_country, ship_carriers, year LIMIT 100;

-- q67
SELECT *
FROM (SELECT i_category, i_class, i_brand, i_product_name, d_year, d_qoy, d_moy, s_store_id, sumsales,
             rank() OVER (PARTITION BY i_category ORDER BY sumsales DESC) AS rk
      FROM (SELECT i_category, i_class, i_brand, i_product_name, d_year, d_qoy, d_moy, s_store_id,
                   sum(coalesce(ss_sales_price * ss_quantity, 0)) AS sumsales
            FROM store_sales, date_dim, store, item
            WHERE ss_sold_date_sk = d_date_sk AND ss_item_sk = i_item_sk AND ss_store_sk = s_store_sk
              AND d_month_seq BETWEEN 1200 AND 1200 + 11
            GROUP BY ROLLUP (i_category, i_class, i_brand, i_product_name, d_year, d_qoy, d_moy, s_store_id)) dw1) dw2
WHERE rk <= 100
ORDER BY i_category, i_class, i_brand, i_product_name, d_year, d_qoy, d_moy, s_store_id, sumsales, rk LIMIT 100;

-- q68
SELECT c_last_name, c_first_name, ca_city, bought_city, ss_ticket_number, extended_price, extended_tax, list_price
FROM (SELECT ss_ticket_number, ss_customer_sk, ca_city AS bought_city, sum(ss_ext_sales_price) AS extended_price,
             sum(ss_ext_list_price) AS list_price, sum(ss_ext_tax) AS extended_tax
      FROM store_sales, date_dim, store, household_demographics, customer_address
      WHERE ss_sold_date_sk = d_date_sk AND ss_store_sk = s_store_sk AND ss_hdemo_sk = hd_demo_sk
        AND ss_addr_sk = ca_address_sk AND d_dom BETWEEN 1 AND 2 AND (hd_dep_count = 4 OR hd_vehicle_count = 3)
        AND d_year IN (1999, 2000, 2001) AND s_city IN ('Midway', 'Fairview')
      GROUP BY ss_ticket_number, ss_customer_sk, ss_addr_sk, ca_city) dn, customer, customer_address current_addr
WHERE ss_customer_sk = c_customer_sk AND c_current_addr_sk = current_addr.ca_address_sk
  AND current_addr.ca_city <> bought_city
ORDER BY c_last_name, ss_ticket_number, c_first_name, ca_city, bought_city, extended_price, extended_tax, list_price
LIMIT 100;

-- q69
SELECT cd_gender, cd_marital_status, cd_education_status, count(*) AS cnt1, cd_purchase_estimate, count(*) AS cnt2,
       cd_credit_rating, count(*) AS cnt3
FROM customer c, customer_address ca, customer_demographics
WHERE c.c_current_addr_sk = ca.ca_address_sk AND ca_state IN ('KY', 'GA', 'NM') AND cd_demo_sk = c.c_current_cdemo_sk
  AND EXISTS (SELECT * FROM store_sales, date_dim
              WHERE c.c_customer_sk = ss_customer_sk AND ss_sold_date_sk = d_date_sk AND d_year = 2001
                AND d_moy BETWEEN 4 AND 6)
  AND NOT EXISTS (SELECT * FROM web_sales, date_dim
                  WHERE c.c_customer_sk = ws_bill_customer_sk AND ws_sold_date_sk = d_date_sk AND d_year = 2001
                    AND d_moy BETWEEN 4 AND 6)
  AND NOT EXISTS (SELECT * FROM catalog_sales, date_dim
                  WHERE c.c_customer_sk = cs_ship_customer_sk AND cs_sold_date_sk = d_date_sk AND d_year = 2001
                    AND d_moy BETWEEN 4 AND 6)
GROUP BY cd_gender, cd_marital_status, cd_education_status, cd_purchase_estimate, cd_credit_rating
ORDER BY cd_gender, cd_marital_status, cd_education_status, cd_purchase_estimate, cd_credit_rating LIMIT 100;

-- q70
SELECT sum(ss_net_profit) AS total_sum, s_state, s_county, grouping(s_state) + grouping(s_county) AS lochierarchy,
       rank() OVER (PARTITION BY grouping(s_state) + grouping(s_county),
                                 CASE WHEN grouping(s_county) = 0 THEN s_state END
                    ORDER BY sum(ss_net_profit) DESC) AS rank_within_parent
FROM store_sales, date_dim d1, store
WHERE d1.d_month_seq BETWEEN 1200 AND 1200 + 11 AND d1.d_date_sk = ss_sold_date_sk AND s_store_sk = ss_store_sk
  AND s_state IN (SELECT s_state
                  FROM (SELECT s_state, rank() OVER (PARTITION BY s_state ORDER BY sum(ss_net_profit) DESC) AS ranking
                        FROM store_sales, store, date_dim
                        WHERE d_month_seq BETWEEN 1200 AND 1200 + 11 AND d_date_sk = ss_sold_date_sk
                          AND s_store_sk = ss_store_sk
                        GROUP BY s_state) tmp1
                  WHERE ranking <= 5)
GROUP BY ROLLUP (s_state, s_county)
ORDER BY lochierarchy DESC, CASE WHEN lochierarchy = 0 THEN s_state END, rank_within_parent, s_state, s_county
LIMIT 100;

-- q71
SELECT i_brand_id AS brand_id, i_brand AS brand, t_hour, t_minute, sum(ext_price) AS ext_price
FROM item,
     (SELECT ws_ext_sales_price AS ext_price, ws_item_sk AS sold_item_sk, ws_sold_time_sk AS time_sk
      FROM web_sales, date_dim WHERE d_date_sk = ws_sold_date_sk AND d_moy = 11 AND d_year = 1999
      UNION ALL
      SELECT cs_ext_sales_price, cs_item_sk, cs_sold_time_sk
      FROM catalog_sales, date_dim WHERE d_date_sk = cs_sold_date_sk AND d_moy = 11 AND d_year = 1999
      UNION ALL
      SELECT ss_ext_sales_price, ss_item_sk, ss_sold_time_sk
      FROM store_sales, date_dim WHERE d_date_sk = ss_sold_date_sk AND d_moy = 11 AND d_year = 1999) tmp, time_dim
WHERE sold_item_sk = i_item_sk AND i_manager_id = 1 AND time_sk = t_time_sk
  AND (t_meal_time = 'breakfast' OR t_meal_time = 'dinner')
GROUP BY i_brand, i_brand_id, t_hour, t_minute
ORDER BY ext_price DESC, brand_id, brand, t_hour, t_minute;

-- q72
SELECT i_item_desc, w_warehouse_name, d1.d_week_seq, sum(CASE WHEN p_promo_sk IS NULL THEN 1 ELSE 0 END) AS no_promo,
       sum(CASE WHEN p_promo_sk IS NOT NULL THEN 1 ELSE 0 END) AS promo, count(*) AS total_cnt
FROM catalog_sales
     JOIN inventory ON cs_item_sk = inv_item_sk
     JOIN warehouse ON w_warehouse_sk = inv_warehouse_sk
     JOIN item ON i_item_sk = cs_item_sk
     JOIN customer_demographics ON cs_bill_cdemo_sk = cd_demo_sk
     JOIN household_demographics ON cs_bill_hdemo_sk = hd_demo_sk
     JOIN date_dim d1 ON cs_sold_date_sk = d1.d_date_sk
     JOIN date_dim d2 ON inv_date_sk = d2.d_date_sk
     JOIN date_dim d3 ON cs_ship_date_sk = d3.d_date_sk
     LEFT OUTER JOIN promotion ON cs_promo_sk = p_promo_sk
     LEFT OUTER JOIN catalog_returns ON cr_item_sk = cs_item_sk AND cr_order_number = cs_order_number
WHERE d1.d_week_seq = d2.d_week_seq AND inv_quantity_on_hand < cs_quantity AND d3.d_date > d1.d_date + INTERVAL '5' DAY
  AND hd_buy_potential = '>10000' AND d1.d_year = 1999 AND cd_marital_status = 'D'
GROUP BY i_item_desc, w_warehouse_name, d1.d_week_seq
ORDER BY total_cnt DESC, i_item_desc, w_warehouse_name, d1.d_week_seq LIMIT 100;

-- q73
SELECT c_last_name, c_first_name, c_salutation, c_preferred_cust_flag, ss_ticket_number, cnt
FROM (SELECT ss_ticket_number, ss_customer_sk, count(*) AS cnt
      FROM store_sales, date_dim, store, household_demographics
      WHERE ss_sold_date_sk = d_date_sk AND ss_store_sk = s_store_sk AND ss_hdemo_sk = hd_demo_sk
        AND d_dom BETWEEN 1 AND 2 AND (hd_buy_potential = '>10000' OR hd_buy_potential = 'Unknown')
        AND hd_vehicle_count > 0
        AND CASE WHEN hd_vehicle_count > 0 THEN hd_dep_count * 1.0 / hd_vehicle_count END > 1
        AND d_year IN (1999, 2000, 2001) AND s_county IN ('Williamson County')
      GROUP BY ss_ticket_number, ss_customer_sk) dj, customer
WHERE ss_customer_sk = c_customer_sk AND cnt BETWEEN 1 AND 5
ORDER BY cnt DESC, c_last_name, c_first_name, c_salutation, c_preferred_cust_flag, ss_ticket_number;

-- q74
WITH year_total AS (
    SELECT c_customer_id AS customer_id, c_first_name AS first_name, c_last_name AS last_name, d_year AS year,
           sum(ss_net_paid) AS year_total, 's' AS sale_type
    FROM customer, store_sales, date_dim
    WHERE c_customer_sk = ss_customer_sk AND ss_sold_date_sk = d_date_sk AND d_year IN (2001, 2002)
    GROUP BY c_customer_id, c_first_name, c_last_name, d_year
    UNION ALL
    SELECT c_customer_id, c_first_name, c_last_name, d_year, sum(ws_net_paid), 'w'
    FROM customer, web_sales, date_dim
    WHERE c_customer_sk = ws_bill_customer_sk AND ws_sold_date_sk = d_date_sk AND d_year IN (2001, 2002)
    GROUP BY c_customer_id, c_first_name, c_last_name, d_year)
SELECT s2.customer_id, s2.first_name, s2.last_name
FROM year_total s1, year_total s2, year_total w1, year_total w2
WHERE s2.customer_id = s1.customer_id AND s1.customer_id = w2.customer_id AND s1.customer_id = w1.customer_id
  AND s1.sale_type = 's' AND w1.sale_type = 'w' AND s2.sale_type = 's' AND w2.sale_type = 'w'
  AND s1.year = 2001 AND s2.year = 2002 AND w1.year = 2001 AND w2.year = 2002
  AND s1.year_total > 0 AND w1.year_total > 0
  AND CASE WHEN w1.year_total > 0 THEN w2.year_total / w1.year_total END
      > CASE WHEN s1.year_total > 0 THEN s2.year_total / s1.year_total END
ORDER BY first_name, customer_id, last_name LIMIT 100;

-- q75
WITH all_sales AS (
    SELECT d_year, i_brand_id, i_class_id, i_category_id, i_manufact_id, sum(sales_cnt) AS sales_cnt,
           sum(sales_amt) AS sales_amt
    FROM (SELECT d_year, i_brand_id, i_class_id, i_category_id, i_manufact_id,
                 cs_quantity - coalesce(cr_return_quantity, 0) AS sales_cnt,
                 cs_ext_sales_price - coalesce(cr_return_amount, 0.0) AS sales_amt
          FROM catalog_sales JOIN item ON i_item_sk = cs_item_sk JOIN date_dim ON d_date_sk = cs_sold_date_sk
               LEFT JOIN catalog_returns ON cs_order_number = cr_order_number AND cs_item_sk = cr_item_sk
          WHERE i_category = 'Books'
          UNION
          SELECT d_year, i_brand_id, i_class_id, i_category_id, i_manufact_id,
                 ss_quantity - coalesce(sr_return_quantity, 0), ss_ext_sales_price - coalesce(sr_return_amt, 0.0)
          FROM store_sales JOIN item ON i_item_sk = ss_item_sk JOIN date_dim ON d_date_sk = ss_sold_date_sk
               LEFT JOIN store_returns ON ss_ticket_number = sr_ticket_number AND ss_item_sk = sr_item_sk
          WHERE i_category = 'Books'
          UNION
          SELECT d_year, i_brand_id, i_class_id, i_category_id, i_manufact_id,
                 ws_quantity - coalesce(wr_return_quantity, 0), ws_ext_sales_price - coalesce(wr_return_amt, 0.0)
          FROM web_sales JOIN item ON i_item_sk = ws_item_sk JOIN date_dim ON d_date_sk = ws_sold_date_sk
               LEFT JOIN web_returns ON ws_order_number = wr_order_number AND ws_item_sk = wr_item_sk
          WHERE i_category = 'Books') sales_detail
    GROUP BY d_year, i_brand_id, i_class_id, i_category_id, i_manufact_id)
SELECT prev_yr.d_year AS prev_year, curr_yr.d_year AS year, curr_yr.i_brand_id, curr_yr.i_class_id,
       curr_yr.i_category_id, curr_yr.i_manufact_id, prev_yr.sales_cnt AS prev_yr_cnt, curr_yr.sales_cnt AS curr_yr_cnt,
       curr_yr.sales_cnt - prev_yr.sales_cnt AS sales_cnt_diff, curr_yr.sales_amt - prev_yr.sales_amt AS sales_amt_diff
FROM all_sales curr_yr, all_sales prev_yr
WHERE curr_yr.i_brand_id = prev_yr.i_brand_id AND curr_yr.i_class_id = prev_yr.i_class_id
  AND curr_yr.i_category_id = prev_yr.i_category_id AND curr_yr.i_manufact_id = prev_yr.i_manufact_id
  AND curr_yr.d_year = 2002 AND prev_yr.d_year = 2001
  AND CAST(curr_yr.sales_cnt AS DECIMAL(17, 2)) / CAST(prev_yr.sales_cnt AS DECIMAL(17, 2)) < 0.9
ORDER BY sales_cnt_diff, sales_amt_diff, curr_yr.i_brand_id, curr_yr.i_class_id, curr_yr.i_manufact_id LIMIT 100;

-- q76
SELECT channel, col_name, d_year, d_qoy, i_category, count(*) AS sales_cnt, sum(ext_sales_price) AS sales_amt
FROM (SELECT 'store' AS channel, 'ss_hdemo_sk' AS col_name, d_year, d_qoy, i_category,
             ss_ext_sales_price AS ext_sales_price
      FROM store_sales, item, date_dim
      WHERE ss_hdemo_sk IS NULL AND ss_sold_date_sk = d_date_sk AND ss_item_sk = i_item_sk
      UNION ALL
      SELECT 'web', 'ws_web_page_sk', d_year, d_qoy, i_category, ws_ext_sales_price
      FROM web_sales, item, date_dim
      WHERE ws_web_page_sk IS NULL AND ws_sold_date_sk = d_date_sk AND ws_item_sk = i_item_sk
      UNION ALL
      SELECT 'catalog', 'cs_warehouse_sk', d_year, d_qoy, i_category, cs_ext_sales_price
      FROM catalog_sales, item, date_dim
      WHERE cs_warehouse_sk IS NULL AND cs_sold_date_sk = d_date_sk AND cs_item_sk = i_item_sk) foo
GROUP BY channel, col_name, d_year, d_qoy, i_category
ORDER BY channel, col_name, d_year, d_qoy, i_category LIMIT 100;

-- q77
WITH ss AS (
    SELECT s_store_sk, sum(ss_ext_sales_price) AS sales, sum(ss_net_profit) AS profit
    FROM store_sales, date_dim, store
    WHERE ss_sold_date_sk = d_date_sk AND d_date BETWEEN DATE '2000-08-23' AND DATE '2000-08-23' + INTERVAL '30' DAY
      AND ss_store_sk = s_store_sk
    GROUP BY s_store_sk),
sr AS (
    SELECT s_store_sk, sum(sr_return_amt) AS returns, sum(sr_net_loss) AS profit_loss
    FROM store_returns, date_dim, store
    WHERE sr_returned_date_sk = d_date_sk
      AND d_date BETWEEN DATE '2000-08-23' AND DATE '2000-08-23' + INTERVAL '30' DAY AND sr_store_sk = s_store_sk
    GROUP BY s_store_sk),
cs AS (
    SELECT cs_call_center_sk, sum(cs_ext_sales_price) AS sales, sum(cs_net_profit) AS profit
    FROM catalog_sales, date_dim
    WHERE cs_sold_date_sk = d_date_sk AND d_date BETWEEN DATE '2000-08-23' AND DATE '2000-08-23' + INTERVAL '30' DAY
    GROUP BY cs_call_center_sk),
cr AS (
    SELECT cr_call_center_sk, sum(cr_return_amount) AS returns, sum(cr_net_loss) AS profit_loss
    FROM catalog_returns, date_dim
    WHERE cr_returned_date_sk = d_date_sk
      AND d_date BETWEEN DATE '2000-08-23' AND DATE '2000-08-23' + INTERVAL '30' DAY
    GROUP BY cr_call_center_sk),
ws AS (
    SELECT wp_web_page_sk, sum(ws_ext_sales_price) AS sales, sum(ws_net_profit) AS profit
    FROM web_sales, date_dim, web_page
    WHERE ws_sold_date_sk = d_date_sk AND d_date BETWEEN DATE '2000-08-23' AND DATE '2000-08-23' + INTERVAL '30' DAY
      AND ws_web_page_sk = wp_web_page_sk
    GROUP BY wp_web_page_sk),
wr AS (
    SELECT wp_web_page_sk, sum(wr_return_amt) AS returns, sum(wr_net_loss) AS profit_loss
    FROM web_returns, date_dim, web_page
    WHERE wr_returned_date_sk = d_date_sk
      AND d_date BETWEEN DATE '2000-08-23' AND DATE '2000-08-23' + INTERVAL '30' DAY AND wr_web_page_sk = wp_web_page_sk
    GROUP BY wp_web_page_sk)
SELECT channel, id, sum(sales) AS sales, sum(returns) AS returns, sum(profit) AS profit
FROM (SELECT 'store channel' AS channel, ss.s_store_sk AS id, sales, coalesce(returns, 0) AS returns,
             profit - coalesce(profit_loss, 0) AS profit
      FROM ss LEFT JOIN sr ON ss.s_store_sk = sr.s_store_sk
      UNION ALL
      SELECT 'catalog channel', cs_call_center_sk, sales, returns, profit - profit_loss FROM cs, cr
      UNION ALL
      SELECT 'web channel', ws.wp_web_page_sk, sales, coalesce(returns, 0), profit - coalesce(profit_loss, 0)
      FROM ws LEFT JOIN wr ON ws.wp_web_page_sk = wr.wp_web_page_sk) x
GROUP BY ROLLUP (channel, id)
ORDER BY channel, id, sales, returns, profit LIMIT 100;

-- q78
WITH ws AS (
    SELECT d_year AS ws_sold_year, ws_item_sk, ws_bill_customer_sk AS ws_customer_sk, sum(ws_quantity) AS ws_qty,
           sum(ws_wholesale_cost) AS ws_wc, sum(ws_sales_price) AS ws_sp
    FROM web_sales LEFT JOIN web_returns ON wr_order_number = ws_order_number AND ws_item_sk = wr_item_sk
         JOIN date_dim ON ws_sold_date_sk = d_date_sk
    WHERE wr_order_number IS NULL
    GROUP BY d_year, ws_item_sk, ws_bill_customer_sk),
cs AS (
    SELECT d_year AS cs_sold_year, cs_item_sk, cs_bill_customer_sk AS cs_customer_sk, sum(cs_quantity) AS cs_qty,
           sum(cs_wholesale_cost) AS cs_wc, sum(cs_sales_price) AS cs_sp
    FROM catalog_sales LEFT JOIN catalog_returns ON cr_order_number = cs_order_number AND cs_item_sk = cr_item_sk
         JOIN date_dim ON cs_sold_date_sk = d_date_sk
    WHERE cr_order_number IS NULL
    GROUP BY d_year, cs_item_sk, cs_bill_customer_sk),
ss AS (
    SELECT d_year AS ss_sold_year, ss_item_sk, ss_customer_sk, sum(ss_quantity) AS ss_qty,
           sum(ss_wholesale_cost) AS ss_wc, sum(ss_sales_price) AS ss_sp
    FROM store_sales LEFT JOIN store_returns ON sr_ticket_number = ss_ticket_number AND ss_item_sk = sr_item_sk
         JOIN date_dim ON ss_sold_date_sk = d_date_sk
    WHERE sr_ticket_number IS NULL
    GROUP BY d_year, ss_item_sk, ss_customer_sk)
SELECT ss_sold_year, ss_item_sk, ss_customer_sk,
       round(ss_qty / (coalesce(ws_qty, 0) + coalesce(cs_qty, 0)), 2) AS ratio,
       ss_qty AS store_qty, ss_wc AS store_wholesale_cost, ss_sp AS store_sales_price,
       coalesce(ws_qty, 0) + coalesce(cs_qty, 0) AS other_chan_qty,
       coalesce(ws_wc, 0) + coalesce(cs_wc, 0) AS other_chan_wholesale_cost,
       coalesce(ws_sp, 0) + coalesce(cs_sp, 0) AS other_chan_sales_price
FROM ss LEFT JOIN ws ON ws_sold_year = ss_sold_year AND ws_item_sk = ss_item_sk AND ws_customer_sk = ss_customer_sk
     LEFT JOIN cs ON cs_sold_year = ss_sold_year AND cs_item_sk = ss_item_sk AND cs_customer_sk = ss_customer_sk
WHERE (coalesce(ws_qty, 0) > 0 OR coalesce(cs_qty, 0) > 0) AND ss_sold_year = 2000
ORDER BY ss_sold_year, ss_item_sk, ss_customer_sk, ss_qty DESC, ss_wc DESC, ss_sp DESC, other_chan_qty,
         other_chan_wholesale_cost, other_chan_sales_price, ratio LIMIT 100;

-- q79
SELECT c_last_name, c_first_name, substring(s_city, 1, 30), ss_ticket_number, amt, profit
FROM (SELECT ss_ticket_number, ss_customer_sk, s_city, sum(ss_coupon_amt) AS amt, sum(ss_net_profit) AS profit
      FROM store_sales, date_dim, store, household_demographics
      WHERE ss_sold_date_sk = d_date_sk AND ss_store_sk = s_store_sk AND ss_hdemo_sk = hd_demo_sk
        AND (hd_dep_count = 6 OR hd_vehicle_count > 2) AND d_dow = 1 AND d_year IN (1999, 2000, 2001)
        AND s_number_employees BETWEEN 200 AND 295
      GROUP BY ss_ticket_number, ss_customer_sk, ss_addr_sk, s_city) ms, customer
WHERE ss_customer_sk = c_customer_sk
ORDER BY c_last_name, c_first_name, substring(s_city, 1, 30), profit, ss_ticket_number, amt LIMIT 100;

-- q80
WITH ssr AS (
    SELECT s_store_id AS store_id, sum(ss_ext_sales_price) AS sales, sum(coalesce(sr_return_amt, 0)) AS returns,
           sum(ss_net_profit - coalesce(sr_net_loss, 0)) AS profit
    FROM store_sales LEFT OUTER JOIN store_returns ON ss_item_sk = sr_item_sk AND ss_ticket_number = sr_ticket_number,
         date_dim, store, item, promotion
    WHERE ss_sold_date_sk = d_date_sk AND d_date BETWEEN DATE '2000-08-23' AND DATE '2000-08-23' + INTERVAL '30' DAY
      AND ss_store_sk = s_store_sk AND ss_item_sk = i_item_sk AND i_current_price > 50 AND ss_promo_sk = p_promo_sk
      AND p_channel_tv = 'N'
    GROUP BY s_store_id),
csr AS (
    SELECT cp_catalog_page_id AS catalog_page_id, sum(cs_ext_sales_price) AS sales,
           sum(coalesce(cr_return_amount, 0)) AS returns, sum(cs_net_profit - coalesce(cr_net_loss, 0)) AS profit
    FROM catalog_sales LEFT OUTER JOIN catalog_returns ON cs_item_sk = cr_item_sk AND cs_order_number = cr_order_number,
         date_dim, catalog_page, item, promotion
    WHERE cs_sold_date_sk = d_date_sk AND d_date BETWEEN DATE '2000-08-23' AND DATE '2000-08-23' + INTERVAL '30' DAY
      AND cs_catalog_page_sk = cp_catalog_page_sk AND cs_item_sk = i_item_sk AND i_current_price > 50
      AND cs_promo_sk = p_promo_sk AND p_channel_tv = 'N'
    GROUP BY cp_catalog_page_id),
wsr AS (
    SELECT web_site_id, sum(ws_ext_sales_price) AS sales, sum(coalesce(wr_return_amt, 0)) AS returns,
           sum(ws_net_profit - coalesce(wr_net_loss, 0)) AS profit
    FROM web_sales LEFT OUTER JOIN web_returns ON ws_item_sk = wr_item_sk AND ws_order_number = wr_order_number,
         date_dim, web_site, item, promotion
    WHERE ws_sold_date_sk = d_date_sk AND d_date BETWEEN DATE '2000-08-23' AND DATE '2000-08-23' + INTERVAL '30' DAY
      AND ws_web_site_sk = web_site_sk AND ws_item_sk = i_item_sk AND i_current_price > 50
      AND ws_promo_sk = p_promo_sk AND p_channel_tv = 'N'
    GROUP BY web_site_id)
SELECT channel, id, sum(sales) AS sales, sum(returns) AS returns, sum(profit) AS profit
FROM (SELECT 'store channel' AS channel, concat('store', store_id) AS id, sales, returns, profit FROM ssr
      UNION ALL
      SELECT 'catalog channel', concat('catalog_page', catalog_page_id), sales, returns, profit FROM csr
      UNION ALL
      SELECT 'web channel', concat('web_site', web_site_id), sales, returns, profit FROM wsr) x
GROUP BY ROLLUP (channel, id)
ORDER BY channel, id LIMIT 100;

-- q81
WITH customer_total_return AS (
    SELECT cr_returning_customer_sk AS ctr_customer_sk, ca_state AS ctr_state,
           sum(cr_return_amt_inc_tax) AS ctr_total_return
    FROM catalog_returns, date_dim, customer_address
    WHERE cr_returned_date_sk = d_date_sk AND d_year = 2000 AND cr_returning_addr_sk = ca_address_sk
    GROUP BY cr_returning_customer_sk, ca_state)
SELECT c_customer_id, c_salutation, c_first_name, c_last_name, ca_street_number, ca_street_name, ca_street_type,
       ca_suite_number, ca_city, ca_county, ca_state, ca_zip, ca_country, ca_gmt_offset, ca_location_type,
       ctr_total_return
FROM customer_total_return ctr1, customer_address, customer
WHERE ctr1.ctr_total_return > (SELECT avg(ctr_total_return) * 1.2 FROM customer_total_return ctr2
                               WHERE ctr1.ctr_state = ctr2.ctr_state)
  AND ca_address_sk = c_current_addr_sk AND ca_state = 'GA' AND ctr1.ctr_customer_sk = c_customer_sk
ORDER BY c_customer_id, c_salutation, c_first_name, c_last_name, ca_street_number, ca_street_name, ca_street_type,
         ca_suite_number, ca_city, ca_county, ca_state, ca_zip, ca_country, ca_gmt_offset, ca_location_type,
         ctr_total_return LIMIT 100;

-- q82
SELECT i_item_id, i_item_desc, i_current_price
FROM item, inventory, date_dim, store_sales
WHERE i_current_price BETWEEN 62 AND 62 + 30 AND inv_item_sk = i_item_sk AND d_date_sk = inv_date_sk
  AND d_date BETWEEN DATE '2000-05-25' AND DATE '2000-05-25' + INTERVAL '60' DAY
  AND i_manufact_id IN (69, 88, 48, 158) AND inv_quantity_on_hand BETWEEN 100 AND 500 AND ss_item_sk = i_item_sk
GROUP BY i_item_id, i_item_desc, i_current_price
ORDER BY i_item_id, i_item_desc, i_current_price LIMIT 100;

-- q83
WITH sr_items AS (
    SELECT i_item_id AS item_id, sum(sr_return_quantity) AS sr_item_qty
    FROM store_returns, item, date_dim
    WHERE sr_item_sk = i_item_sk AND sr_returned_date_sk = d_date_sk
      AND d_date IN (SELECT d_date FROM date_dim
                     WHERE d_week_seq IN (SELECT d_week_seq FROM date_dim
                                          WHERE d_date IN (DATE '2000-06-30', DATE '2000-09-27', DATE '2000-11-17')))
    GROUP BY i_item_id),
cr_items AS (
    SELECT i_item_id AS item_id, sum(cr_return_quantity) AS cr_item_qty
    FROM catalog_returns, item, date_dim
    WHERE cr_item_sk = i_item_sk AND cr_returned_date_sk = d_date_sk
      AND d_date IN (SELECT d_date FROM date_dim
                     WHERE d_week_seq IN (SELECT d_week_seq FROM date_dim
                                          WHERE d_date IN (DATE '2000-06-30', DATE '2000-09-27', DATE '2000-11-17')))
    GROUP BY i_item_id),
wr_items AS (
    SELECT i_item_id AS item_id, sum(wr_return_quantity) AS wr_item_qty
    FROM web_returns, item, date_dim
    WHERE wr_item_sk = i_item_sk AND wr_returned_date_sk = d_date_sk
      AND d_date IN (SELECT d_date FROM date_dim
                     WHERE d_week_seq IN (SELECT d_week_seq FROM date_dim
                                          WHERE d_date IN (DATE '2000-06-30', DATE '2000-09-27', DATE '2000-11-17')))
    GROUP BY i_item_id)
SELECT sr_items.item_id, sr_item_qty, sr_item_qty / (sr_item_qty + cr_item_qty + wr_item_qty) / 3.0 * 100 AS sr_dev,
       cr_item_qty, cr_item_qty / (sr_item_qty + cr_item_qty + wr_item_qty) / 3.0 * 100 AS cr_dev,
       wr_item_qty, wr_item_qty / (sr_item_qty + cr_item_qty + wr_item_qty) / 3.0 * 100 AS wr_dev,
       (sr_item_qty + cr_item_qty + wr_item_qty) / 3.0 AS average
FROM sr_items, cr_items, wr_items
WHERE sr_items.item_id = cr_items.item_id AND sr_items.item_id = wr_items.item_id
ORDER BY sr_items.item_id, sr_item_qty LIMIT 100;

-- q84
SELECT c_customer_id AS customer_id, concat(coalesce(c_last_name, ''), ', ', coalesce(c_first_name, '')) AS customername
FROM customer, customer_address, customer_demographics, household_demographics, income_band, store_returns
WHERE ca_city = 'Marion' AND c_current_addr_sk = ca_address_sk AND ib_lower_bound >= 38128
  AND ib_upper_bound <= 38128 + 50000 AND ib_income_band_sk = hd_income_band_sk AND cd_demo_sk = c_current_cdemo_sk
  AND hd_demo_sk = c_current_hdemo_sk AND sr_cdemo_sk = cd_demo_sk
ORDER BY c_customer_id LIMIT 100;

-- q85
SELECT substring(r_reason_desc, 1, 20), avg(ws_quantity), avg(wr_refunded_cash), avg(wr_fee)
FROM web_sales, web_returns, web_page, customer_demographics cd1, customer_demographics cd2, customer_address, date_dim,
     reason
WHERE ws_web_page_sk = wp_web_page_sk AND ws_item_sk = wr_item_sk AND ws_order_number = wr_order_number
  AND ws_sold_date_sk = d_date_sk AND d_year = 2000 AND cd1.cd_demo_sk = wr_refunded_cdemo_sk
  AND cd2.cd_demo_sk = wr_returning_cdemo_sk AND ca_address_sk = wr_refunded_addr_sk AND r_reason_sk = wr_reason_sk
  AND (cd1.cd_marital_status = 'M' AND cd1.cd_marital_status = cd2.cd_marital_status
       AND cd1.cd_education_status = 'Advanced Degree' AND cd1.cd_education_status = cd2.cd_education_status
       AND ws_sales_price BETWEEN 100.00 AND 150.00
       OR cd1.cd_marital_status = 'S' AND cd1.cd_marital_status = cd2.cd_marital_status
       AND cd1.cd_education_status = 'College' AND cd1.cd_education_status = cd2.cd_education_status
       AND ws_sales_price BETWEEN 50.00 AND 100.00
       OR cd1.cd_marital_status = 'W' AND cd1.cd_marital_status = cd2.cd_marital_status
       AND cd1.cd_education_status = '2 yr Degree' AND cd1.cd_education_status = cd2.cd_education_status
       AND ws_sales_price BETWEEN 150.00 AND 200.00)
  AND (ca_country = 'United States' AND ca_state IN ('IN', 'OH', 'NJ') AND ws_net_profit BETWEEN 100 AND 200
       OR ca_country = 'United States' AND ca_state IN ('WI', 'CT', 'KY') AND ws_net_profit BETWEEN 150 AND 300
       OR ca_country = 'United States' AND ca_state IN ('LA', 'IA', 'AR') AND ws_net_profit BETWEEN 50 AND 250)
GROUP BY r_reason_desc
ORDER BY substring(r_reason_desc, 1, 20), avg(ws_quantity), avg(wr_refunded_cash), avg(wr_fee) LIMIT 100;

-- q86
SELECT sum(ws_net_paid) AS total_sum, i_category, i_class, grouping(i_category) + grouping(i_class) AS lochierarchy,
       rank() OVER (PARTITION BY grouping(i_category) + grouping(i_class),
                                 CASE WHEN grouping(i_class) = 0 THEN i_category END
                    ORDER BY sum(ws_net_paid) DESC) AS rank_within_parent
FROM web_sales, date_dim d1, item
WHERE d1.d_month_seq BETWEEN 1200 AND 1200 + 11 AND d1.d_date_sk = ws_sold_date_sk AND i_item_sk = ws_item_sk
GROUP BY ROLLUP (i_category, i_class)
ORDER BY lochierarchy DESC, CASE WHEN lochierarchy = 0 THEN i_category END, rank_within_parent, i_category, i_class
LIMIT 100;

-- q87
SELECT count(*)
FROM (SELECT DISTINCT c_last_name, c_first_name, d_date FROM store_sales, date_dim, customer
      WHERE ss_sold_date_sk = d_date_sk AND ss_customer_sk = c_customer_sk AND d_month_seq BETWEEN 1200 AND 1200 + 11
      EXCEPT
      SELECT DISTINCT c_last_name, c_first_name, d_date FROM catalog_sales, date_dim, customer
      WHERE cs_sold_date_sk = d_date_sk AND cs_bill_customer_sk = c_customer_sk
        AND d_month_seq BETWEEN 1200 AND 1200 + 11
      EXCEPT
      SELECT DISTINCT c_last_name, c_first_name, d_date FROM web_sales, date_dim, customer
      WHERE ws_sold_date_sk = d_date_sk AND ws_bill_customer_sk = c_customer_sk
        AND d_month_seq BETWEEN 1200 AND 1200 + 11) cool_cust;

-- q88
SELECT *
FROM (SELECT count(*) AS h8_30_to_9 FROM store_sales, household_demographics, time_dim, store
      WHERE ss_sold_time_sk = t_time_sk AND ss_hdemo_sk = hd_demo_sk AND ss_store_sk = s_store_sk
        AND t_hour = 8 AND t_minute >= 30 AND s_store_name = 'ought'
        AND (hd_dep_count = 4 AND hd_vehicle_count <= 4 + 2 OR hd_dep_count = 2 AND hd_vehicle_count <= 2 + 2
             OR hd_dep_count = 0 AND hd_vehicle_count <= 0 + 2)) s1,
     (SELECT count(*) AS h9_to_9_30 FROM store_sales, household_demographics, time_dim, store
      WHERE ss_sold_time_sk = t_time_sk AND ss_hdemo_sk = hd_demo_sk AND ss_store_sk = s_store_sk
        AND t_hour = 9 AND t_minute < 30 AND s_store_name = 'ought'
        AND (hd_dep_count = 4 AND hd_vehicle_count <= 4 + 2 OR hd_dep_count = 2 AND hd_vehicle_count <= 2 + 2
             OR hd_dep_count = 0 AND hd_vehicle_count <= 0 + 2)) s2,
     (SELECT count(*) AS h9_30_to_10 FROM store_sales, household_demographics, time_dim, store
      WHERE ss_sold_time_sk = t_time_sk AND ss_hdemo_sk = hd_demo_sk AND ss_store_sk = s_store_sk
        AND t_hour = 9 AND t_minute >= 30 AND s_store_name = 'ought'
        AND (hd_dep_count = 4 AND hd_vehicle_count <= 4 + 2 OR hd_dep_count = 2 AND hd_vehicle_count <= 2 + 2
             OR hd_dep_count = 0 AND hd_vehicle_count <= 0 + 2)) s3,
     (SELECT count(*) AS h10_to_10_30 FROM store_sales, household_demographics, time_dim, store
      WHERE ss_sold_time_sk = t_time_sk AND ss_hdemo_sk = hd_demo_sk AND ss_store_sk = s_store_sk
        AND t_hour = 10 AND t_minute < 30 AND s_store_name = 'ought'
        AND (hd_dep_count = 4 AND hd_vehicle_count <= 4 + 2 OR hd_dep_count = 2 AND hd_vehicle_count <= 2 + 2
             OR hd_dep_count = 0 AND hd_vehicle_count <= 0 + 2)) s4,
     (SELECT count(*) AS h10_30_to_11 FROM store_sales, household_demographics, time_dim, store
      WHERE ss_sold_time_sk = t_time_sk AND ss_hdemo_sk = hd_demo_sk AND ss_store_sk = s_store_sk
        AND t_hour = 10 AND t_minute >= 30 AND s_store_name = 'ought'
        AND (hd_dep_count = 4 AND hd_vehicle_count <= 4 + 2 OR hd_dep_count = 2 AND hd_vehicle_count <= 2 + 2
             OR hd_dep_count = 0 AND hd_vehicle_count <= 0 + 2)) s5,
     (SELECT count(*) AS h11_to_11_30 FROM store_sales, household_demographics, time_dim, store
      WHERE ss_sold_time_sk = t_time_sk AND ss_hdemo_sk = hd_demo_sk AND ss_store_sk = s_store_sk
        AND t_hour = 11 AND t_minute < 30 AND s_store_name = 'ought'
        AND (hd_dep_count = 4 AND hd_vehicle_count <= 4 + 2 OR hd_dep_count = 2 AND hd_vehicle_count <= 2 + 2
             OR hd_dep_count = 0 AND hd_vehicle_count <= 0 + 2)) s6,
     (SELECT count(*) AS h11_30_to_12 FROM store_sales, household_demographics, time_dim, store
      WHERE ss_sold_time_sk = t_time_sk AND ss_hdemo_sk = hd_demo_sk AND ss_store_sk = s_store_sk
        AND t_hour = 11 AND t_minute >= 30 AND s_store_name = 'ought'
        AND (hd_dep_count = 4 AND hd_vehicle_count <= 4 + 2 OR hd_dep_count = 2 AND hd_vehicle_count <= 2 + 2
             OR hd_dep_count = 0 AND hd_vehicle_count <= 0 + 2)) s7,
     (SELECT count(*) AS h12_to_12_30 FROM store_sales, household_demographics, time_dim, store
      WHERE ss_sold_time_sk = t_time_sk AND ss_hdemo_sk = hd_demo_sk AND ss_store_sk = s_store_sk
        AND t_hour = 12 AND t_minute < 30 AND s_store_name = 'ought'
        AND (hd_dep_count = 4 AND hd_vehicle_count <= 4 + 2 OR hd_dep_count = 2 AND hd_vehicle_count <= 2 + 2
             OR hd_dep_count = 0 AND hd_vehicle_count <= 0 + 2)) s8;

-- q89
SELECT *
FROM (SELECT i_category, i_class, i_brand, s_store_name, s_company_name, d_moy, sum(ss_sales_price) AS sum_sales,
             avg(sum(ss_sales_price)) OVER (PARTITION BY i_category, i_brand, s_store_name, s_company_name)
               AS avg_monthly_sales
      FROM item, store_sales, date_dim, store
      WHERE ss_item_sk = i_item_sk AND ss_sold_date_sk = d_date_sk AND ss_store_sk = s_store_sk AND d_year = 1999
        AND (i_category IN ('Books', 'Electronics', 'Sports') AND i_class IN ('computers', 'stereo', 'football')
             OR i_category IN ('Men', 'Jewelry', 'Women') AND i_class IN ('shirts', 'birdal', 'dresses'))
      GROUP BY i_category, i_class, i_brand, s_store_name, s_company_name, d_moy) tmp1
WHERE CASE WHEN avg_monthly_sales <> 0 THEN abs(sum_sales - avg_monthly_sales) / avg_monthly_sales END > 0.1
ORDER BY sum_sales - avg_monthly_sales, s_store_name, i_category, i_class, i_brand, s_company_name, d_moy LIMIT 100;

-- q90
SELECT CAST(amc AS DECIMAL(15, 4)) / CAST(pmc AS DECIMAL(15, 4)) AS am_pm_ratio
FROM (SELECT count(*) AS amc FROM web_sales, household_demographics, time_dim, web_page
      WHERE ws_sold_time_sk = t_time_sk AND ws_ship_hdemo_sk = hd_demo_sk AND ws_web_page_sk = wp_web_page_sk
        AND t_hour BETWEEN 8 AND 8 + 1 AND hd_dep_count = 6 AND wp_char_count BETWEEN 2500 AND 2700) at,
     (SELECT count(*) AS pmc FROM web_sales, household_demographics, time_dim, web_page
      WHERE ws_sold_time_sk = t_time_sk AND ws_ship_hdemo_sk = hd_demo_sk AND ws_web_page_sk = wp_web_page_sk
        AND t_hour BETWEEN 19 AND 19 + 1 AND hd_dep_count = 6 AND wp_char_count BETWEEN 2500 AND 2700) pt
ORDER BY am_pm_ratio LIMIT 100;

-- q91
SELECT cc_call_center_id AS call_center, cc_name AS call_center_name, cc_manager AS manager,
       sum(cr_net_loss) AS returns_loss
FROM call_center, catalog_returns, date_dim, customer, customer_address, customer_demographics, household_demographics
WHERE cr_call_center_sk = cc_call_center_sk AND cr_returned_date_sk = d_date_sk
  AND cr_returning_customer_sk = c_customer_sk AND cd_demo_sk = c_current_cdemo_sk AND hd_demo_sk = c_current_hdemo_sk
  AND ca_address_sk = c_current_addr_sk AND d_year = 1999 AND d_moy = 12
  AND (cd_marital_status = 'M' AND cd_education_status = 'Unknown'
       OR cd_marital_status = 'W' AND cd_education_status = 'Advanced Degree')
  AND hd_buy_potential LIKE 'Unknown%' AND ca_gmt_offset = -6
GROUP BY cc_call_center_id, cc_name, cc_manager, cd_marital_status, cd_education_status
ORDER BY returns_loss DESC, call_center, call_center_name, manager;

-- q92
SELECT sum(ws_ext_discount_amt) AS excess_discount_amount
FROM web_sales, item, date_dim
WHERE i_manufact_id = 88 AND i_item_sk = ws_item_sk
  AND d_date BETWEEN DATE '2000-01-27' AND DATE '2000-01-27' + INTERVAL '90' DAY AND d_date_sk = ws_sold_date_sk
  AND ws_ext_discount_amt > (SELECT 1.3 * avg(ws_ext_discount_amt) FROM web_sales, date_dim
                             WHERE ws_item_sk = i_item_sk
                               AND d_date BETWEEN DATE '2000-01-27' AND DATE '2000-01-27' + INTERVAL '90' DAY
                               AND d_date_sk = ws_sold_date_sk)
ORDER BY excess_discount_amount LIMIT 100;

-- q93
SELECT ss_customer_sk, sum(act_sales) AS sumsales
FROM (SELECT ss_item_sk, ss_ticket_number, ss_customer_sk,
             CASE WHEN sr_return_quantity IS NOT NULL THEN (ss_quantity - sr_return_quantity) * ss_sales_price
                  ELSE ss_quantity * ss_sales_price END AS act_sales
      FROM store_sales LEFT OUTER JOIN store_returns
           ON sr_item_sk = ss_item_sk AND sr_ticket_number = ss_ticket_number, reason
      WHERE sr_reason_sk = r_reason_sk AND r_reason_desc = 'reason 28') t
GROUP BY ss_customer_sk
ORDER BY sumsales, ss_customer_sk LIMIT 100;

-- q94
SELECT count(DISTINCT ws_order_number) AS order_count, sum(ws_ext_ship_cost) AS total_shipping_cost,
       sum(ws_net_profit) AS total_net_profit
FROM web_sales ws1, date_dim, customer_address, web_site
WHERE d_date BETWEEN DATE '1999-02-01' AND DATE '1999-02-01' + INTERVAL '60' DAY AND ws1.ws_ship_date_sk = d_date_sk
  AND ws1.ws_ship_addr_sk = ca_address_sk AND ca_state = 'IL' AND ws1.ws_web_site_sk = web_site_sk
  AND web_company_name = 'ese'
  AND EXISTS (SELECT * FROM web_sales ws2
              WHERE ws1.ws_order_number = ws2.ws_order_number AND ws1.ws_warehouse_sk <> ws2.ws_warehouse_sk)
  AND NOT EXISTS (SELECT * FROM web_returns wr1 WHERE ws1.ws_order_number = wr1.wr_order_number)
ORDER BY count(DISTINCT ws_order_number) LIMIT 100;

-- q95
WITH ws_wh AS (
    SELECT ws1.ws_order_number, ws1.ws_warehouse_sk AS wh1, ws2.ws_warehouse_sk AS wh2
    FROM web_sales ws1, web_sales ws2
    WHERE ws1.ws_order_number = ws2.ws_order_number AND ws1.ws_warehouse_sk <> ws2.ws_warehouse_sk)
SELECT count(DISTINCT ws_order_number) AS order_count, sum(ws_ext_ship_cost) AS total_shipping_cost,
       sum(ws_net_profit) AS total_net_profit
FROM web_sales ws1, date_dim, customer_address, web_site
WHERE d_date BETWEEN DATE '1999-02-01' AND DATE '1999-02-01' + INTERVAL '60' DAY AND ws1.ws_ship_date_sk = d_date_sk
  AND ws1.ws_ship_addr_sk = ca_address_sk AND ca_state = 'IL' AND ws1.ws_web_site_sk = web_site_sk
  AND web_company_name = 'ese' AND ws1.ws_order_number IN (SELECT ws_order_number FROM ws_wh)
  AND ws1.ws_order_number IN (SELECT wr_order_number FROM web_returns, ws_wh
                              WHERE wr_order_number = ws_wh.ws_order_number)
ORDER BY count(DISTINCT ws_order_number) LIMIT 100;

-- q96
SELECT count(*)
FROM store_sales, household_demographics, time_dim, store
WHERE ss_sold_time_sk = t_time_sk AND ss_hdemo_sk = hd_demo_sk AND ss_store_sk = s_store_sk AND t_hour = 20
  AND t_minute >= 30 AND hd_dep_count = 7 AND s_store_name = 'able'
ORDER BY count(*) LIMIT 100;

-- q97
WITH ssci AS (
    SELECT ss_customer_sk AS customer_sk, ss_item_sk AS item_sk FROM store_sales, date_dim
    WHERE ss_sold_date_sk = d_date_sk AND d_month_seq BETWEEN 1200 AND 1200 + 11
    GROUP BY ss_customer_sk, ss_item_sk),
csci AS (
    SELECT cs_bill_customer_sk AS customer_sk, cs_item_sk AS item_sk FROM catalog_sales, date_dim
    WHERE cs_sold_date_sk = d_date_sk AND d_month_seq BETWEEN 1200 AND 1200 + 11
    GROUP BY cs_bill_customer_sk, cs_item_sk)
SELECT sum(CASE WHEN ssci.customer_sk IS NOT NULL AND csci.customer_sk IS NULL THEN 1 ELSE 0 END) AS store_only,
       sum(CASE WHEN ssci.customer_sk IS NULL AND csci.customer_sk IS NOT NULL THEN 1 ELSE 0 END) AS catalog_only,
       sum(CASE WHEN ssci.customer_sk IS NOT NULL AND csci.customer_sk IS NOT NULL THEN 1 ELSE 0 END)
         AS store_and_catalog
FROM ssci FULL OUTER JOIN csci ON ssci.customer_sk = csci.customer_sk AND ssci.item_sk = csci.item_sk
LIMIT 100;

-- q98
SELECT i_item_id, i_item_desc, i_category, i_class, i_current_price, sum(ss_ext_sales_price) AS itemrevenue,
       sum(ss_ext_sales_price) * 100 / sum(sum(ss_ext_sales_price)) OVER (PARTITION BY i_class) AS revenueratio
FROM store_sales, item, date_dim
WHERE ss_item_sk = i_item_sk AND i_category IN ('Sports', 'Books', 'Home') AND ss_sold_date_sk = d_date_sk
  AND d_date BETWEEN DATE '1999-02-22' AND DATE '1999-02-22' + INTERVAL '30' DAY
GROUP BY i_item_id, i_item_desc, i_category, i_class, i_current_price
ORDER BY i_category, i_class, i_item_id, i_item_desc, revenueratio, i_current_price;

-- q99
SELECT substring(w_warehouse_name, 1, 20) AS warehouse, sm_type, cc_name,
       sum(CASE WHEN cs_ship_date_sk - cs_sold_date_sk <= 30 THEN 1 ELSE 0 END) AS `30 days`,
       sum(CASE WHEN cs_ship_date_sk - cs_sold_date_sk > 30 AND cs_ship_date_sk - cs_sold_date_sk <= 60
                THEN 1 ELSE 0 END) AS `31-60 days`,
       sum(CASE WHEN cs_ship_date_sk - cs_sold_date_sk > 60 AND cs_ship_date_sk - cs_sold_date_sk <= 90
                THEN 1 ELSE 0 END) AS `61-90 days`,
       sum(CASE WHEN cs_ship_date_sk - cs_sold_date_sk > 90 AND cs_ship_date_sk - cs_sold_date_sk <= 120
                THEN 1 ELSE 0 END) AS `91-120 days`,
       sum(CASE WHEN cs_ship_date_sk - cs_sold_date_sk > 120 THEN 1 ELSE 0 END) AS `>120 days`
FROM catalog_sales, warehouse, ship_mode, call_center, date_dim
WHERE d_month_seq BETWEEN 1200 AND 1200 + 11 AND cs_ship_date_sk = d_date_sk AND cs_warehouse_sk = w_warehouse_sk
  AND cs_ship_mode_sk = sm_ship_mode_sk AND cs_call_center_sk = cc_call_center_sk
GROUP BY substring(w_warehouse_name, 1, 20), sm_type, cc_name
ORDER BY warehouse, sm_type, cc_name LIMIT 100;
