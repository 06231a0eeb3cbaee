"""A little Java, compiled in the driver by the compiler that Spark brings along (Janino).

Only what Python cannot do across the gateway, or could only do item by item: describe an operator exactly, take the
rows out of a hashed relation, swap the plans of subqueries inside expressions, sum and count what is in a file,
list files, and look through what Spark remembers of its stages. It runs in the driver alone: no executor needs these
classes. Nothing of it is compiled before somebody asks how a query is doing, or to move it.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SOURCE = """
package headrace;

import java.util.*;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.*;
import org.apache.spark.sql.execution.*;
import org.apache.spark.sql.execution.adaptive.*;
import org.apache.spark.sql.execution.joins.*;
import org.apache.spark.status.api.v1.JobData;
import org.apache.spark.status.api.v1.StageData;

public class Aid {
  /** What an operator does, or a part of it, column by column: columns are named by where they come from, so that the
      same operator over the same inputs has the same text in every session. Inputs themselves are left out; subqueries
      are named by `asked`, their identities in their order. Python functions are numbered by first appearance in
      `functions`: what they are pickled to may differ between processes, but not which are the same. */
  public String describe(SparkPlan node, Object part, String asked, Map functions) {
    return new Text(node, asked, functions).of(part);
  }

  /** What a statement is made of as Spark's parser left it, nothing being run or looked up: the class of each node with
      the names it has, one a line. Whatever a node holds is walked, so that no part of a statement is passed over. */
  public String contents(Object parsed) {
    StringBuilder out = new StringBuilder();
    contents(parsed, new IdentityHashMap(), out);
    return out.toString();
  }

  private void contents(Object o, IdentityHashMap seen, StringBuilder out) {
    if (o == null || o instanceof org.apache.spark.sql.types.DataType || o instanceof String) return;
    if (seen.put(o, o) != null) return;
    if (o instanceof org.apache.spark.sql.catalyst.trees.TreeNode) {
      org.apache.spark.sql.catalyst.trees.TreeNode node = (org.apache.spark.sql.catalyst.trees.TreeNode) o;
      out.append(node.getClass().getName());
      if (o instanceof org.apache.spark.sql.catalyst.analysis.UnresolvedFunction) {
        names(((org.apache.spark.sql.catalyst.analysis.UnresolvedFunction) o).nameParts(), out);
      } else if (o instanceof org.apache.spark.sql.catalyst.analysis.UnresolvedTableValuedFunction) {
        names(((org.apache.spark.sql.catalyst.analysis.UnresolvedTableValuedFunction) o).name(), out);
      } else if (o instanceof org.apache.spark.sql.catalyst.analysis.UnresolvedRelation) {
        org.apache.spark.sql.catalyst.analysis.UnresolvedRelation relation =
          (org.apache.spark.sql.catalyst.analysis.UnresolvedRelation) o;
        names(relation.multipartIdentifier(), out);
        options(relation.options().keySet().iterator(), out);
      } else if (o instanceof org.apache.spark.sql.catalyst.analysis.UnresolvedGenerator) {
        out.append('\\0').append(((org.apache.spark.sql.catalyst.analysis.UnresolvedGenerator) o).name().funcName());
      } else if (o instanceof org.apache.spark.sql.execution.command.SetCommand) {
        scala.Option given = ((org.apache.spark.sql.execution.command.SetCommand) o).kv();
        if (given.isDefined()) {
          scala.Tuple2 pair = (scala.Tuple2) given.get();
          scala.Option value = (scala.Option) pair._2();
          out.append('\\0').append(pair._1());
          if (value.isDefined()) out.append('\\0').append(value.get());
        }
      } else if (o instanceof org.apache.spark.sql.execution.command.CreateViewCommand) {
        out.append('\\0').append(((org.apache.spark.sql.execution.command.CreateViewCommand) o).viewType());
      } else if (o instanceof org.apache.spark.sql.execution.datasources.CreateTempViewUsing) {
        org.apache.spark.sql.execution.datasources.CreateTempViewUsing view =
          (org.apache.spark.sql.execution.datasources.CreateTempViewUsing) o;
        out.append('\\0').append(view.provider());
        options(scala.jdk.javaapi.CollectionConverters.asJava(view.options()).keySet().iterator(), out);
      }
      out.append('\\1');
      contents(node.children(), seen, out);
      contents(node.innerChildren(), seen, out);
    }
    if (o instanceof scala.collection.Iterable) {
      scala.collection.Iterator each = ((scala.collection.Iterable) o).iterator();
      while (each.hasNext()) contents(each.next(), seen, out);
    } else if (o instanceof scala.Product) {
      scala.collection.Iterator each = ((scala.Product) o).productIterator();
      while (each.hasNext()) contents(each.next(), seen, out);
    }
  }

  private void options(Iterator keys, StringBuilder out) {
    out.append('\\1').append("options");
    while (keys.hasNext()) out.append('\\0').append(keys.next());
  }

  private void names(scala.collection.Iterable names, StringBuilder out) {
    scala.collection.Iterator each = names.iterator();
    while (each.hasNext()) out.append('\\0').append(each.next());
  }

  /** A table for the numbers of Python functions. */
  public Map numbers() {
    return new HashMap();
  }

  /** Whether one of these Python functions adds to an accumulator. */
  public boolean accumulates(Map functions) {
    Iterator each = functions.keySet().iterator();
    while (each.hasNext()) {
      StringBuilder text = new StringBuilder();
      scala.collection.Iterator bytes = ((scala.collection.Iterable) each.next()).iterator();
      while (bytes.hasNext()) text.append((char) ((Byte) bytes.next()).byteValue());
      if (text.indexOf("_deserialize_accumulator") >= 0) return true;
    }
    return false;
  }

  /** All rows of a broadcast value, copied. Null if it does not hold them. */
  public scala.collection.immutable.Seq rows(Object value) {
    ArrayList found = new ArrayList();
    if (value instanceof InternalRow[]) {
      InternalRow[] all = (InternalRow[]) value;
      for (int i = 0; i < all.length; i++) found.add(all[i]);
    } else if (value instanceof HashedRelation) {
      HashedRelation relation = ((HashedRelation) value).asReadOnlyCopy();
      if (relation.getClass().getSimpleName().startsWith("HashedRelationWithAllNullKeys")) return null;
      HashSet seen = new HashSet();
      scala.collection.Iterator keys = relation.keys();
      while (keys.hasNext()) {
        InternalRow key = ((InternalRow) keys.next()).copy();
        if (!seen.add(key)) continue;
        scala.collection.Iterator matches = relation.get(key);
        if (matches == null) continue;
        while (matches.hasNext()) found.add(((InternalRow) matches.next()).copy());
      }
    } else {
      return null;
    }
    return scala.collection.JavaConverters.asScalaBuffer(found).toVector();
  }

  public long checksum(org.apache.hadoop.fs.FileSystem files, org.apache.hadoop.fs.Path path) throws Exception {
    java.util.zip.CRC32 sum = new java.util.zip.CRC32();
    byte[] block = new byte[1 << 20];
    java.io.InputStream in = files.open(path);
    try {
      int n = in.read(block);
      while (n >= 0) {
        sum.update(block, 0, n);
        n = in.read(block);
      }
    } finally {
      in.close();
    }
    return sum.getValue();
  }

  /** Nanoseconds to write so many bytes to a new file and read them again. */
  public long probe(org.apache.hadoop.conf.Configuration conf, String address, int bytes) throws Exception {
    org.apache.hadoop.fs.Path path = new org.apache.hadoop.fs.Path(address);
    org.apache.hadoop.fs.FileSystem files = path.getFileSystem(conf);
    byte[] block = new byte[1 << 16];
    new Random().nextBytes(block);
    try {
      long began = System.nanoTime();
      java.io.OutputStream out = files.create(path, true);
      try {
        for (int n = 0; n < bytes; n += block.length) out.write(block);
      } finally {
        out.close();
      }
      checksum(files, path);
      return System.nanoTime() - began;
    } finally {
      files.delete(path, false);
    }
  }

  /** Files as they were listed: path, length, time, and the mark their store gave this content (nothing if it gives
      none), all with a null character between. Of most listings Spark drops the marks: folders are listed again. */
  public String files(scala.collection.Iterable listed, org.apache.hadoop.conf.Configuration conf) throws Exception {
    StringBuilder text = new StringBuilder();
    HashMap folders = new HashMap();
    scala.collection.Iterator each = listed.iterator();
    while (each.hasNext()) {
      org.apache.hadoop.fs.FileStatus file = (org.apache.hadoop.fs.FileStatus) each.next();
      String mark = mark(file);
      if (mark == null) {
        org.apache.hadoop.fs.Path folder = file.getPath().getParent();
        if (!folders.containsKey(folder)) folders.put(folder, marks(folder, conf));
        mark = (String) ((Map) folders.get(folder)).get(file.getPath());
      }
      if (text.length() > 0) text.append((char) 0);
      text.append(file.getPath()).append((char) 0).append(file.getLen()).append((char) 0);
      text.append(file.getModificationTime()).append((char) 0).append(mark == null ? "" : mark);
    }
    return text.toString();
  }

  private String mark(org.apache.hadoop.fs.FileStatus file) {
    return file instanceof org.apache.hadoop.fs.EtagSource ? ((org.apache.hadoop.fs.EtagSource) file).getEtag() : null;
  }

  private Map marks(org.apache.hadoop.fs.Path folder, org.apache.hadoop.conf.Configuration conf) throws Exception {
    HashMap found = new HashMap();
    org.apache.hadoop.fs.FileSystem files = folder.getFileSystem(conf);
    if (!files.hasPathCapability(folder, "fs.capability.etags.available")) return found;
    org.apache.hadoop.fs.FileStatus[] all = files.listStatus(folder);
    for (int i = 0; i < all.length; i++) found.put(all[i].getPath(), mark(all[i]));
    return found;
  }

  /** How many rows a Parquet file says it has. */
  public long records(org.apache.hadoop.conf.Configuration conf, String address) throws Exception {
    org.apache.parquet.hadoop.ParquetFileReader file = org.apache.parquet.hadoop.ParquetFileReader.open(
      org.apache.parquet.hadoop.util.HadoopInputFile.fromPath(new org.apache.hadoop.fs.Path(address), conf));
    try {
      return file.getRecordCount();
    } finally {
      file.close();
    }
  }

  /** Milliseconds that the stage ran which shuffled an RDD; -1 if Spark does not know, or no more. */
  public long milliseconds(org.apache.spark.SparkContext context, int rdd) {
    scala.collection.Iterator each = stages(context);
    while (each.hasNext()) {
      StageData stage = (StageData) each.next();
      if (stage.completionTime().isEmpty() || stage.submissionTime().isEmpty() || stage.rddIds().isEmpty()) continue;
      if (((Integer) stage.rddIds().apply(0)).intValue() == rdd) {
        return ((Date) stage.completionTime().get()).getTime() - ((Date) stage.submissionTime().get()).getTime();
      }
    }
    return -1;
  }

  /** When a stage of a job group was last completed, in milliseconds since 1970; -1 if none was. */
  public long completed(org.apache.spark.SparkContext context, String group) {
    HashSet ours = new HashSet();
    scala.collection.Iterator jobs = context.statusStore().jobsList(null).iterator();
    while (jobs.hasNext()) {
      JobData job = (JobData) jobs.next();
      if (job.jobGroup().isEmpty() || !job.jobGroup().get().equals(group)) continue;
      scala.collection.Iterator ids = job.stageIds().iterator();
      while (ids.hasNext()) ours.add(ids.next());
    }
    long last = -1;
    scala.collection.Iterator each = stages(context);
    while (each.hasNext()) {
      StageData stage = (StageData) each.next();
      if (stage.completionTime().isEmpty() || !ours.contains(Integer.valueOf(stage.stageId()))) continue;
      last = Math.max(last, ((Date) stage.completionTime().get()).getTime());
    }
    return last;
  }

  private scala.collection.Iterator stages(org.apache.spark.SparkContext context) {
    return context.statusStore().stageList(null, false, false, new double[0], new ArrayList()).iterator();
  }

  public Swap swap() {
    return new Swap();
  }

  /** A table for the numbers of objects. */
  public Map objects() {
    return new IdentityHashMap();
  }

  /** The number of an object in `objects`: the same for the same object, another for any other, however alike. */
  public int number(Map objects, Object o) {
    synchronized (objects) {
      Integer found = (Integer) objects.get(o);
      if (found == null) {
        found = Integer.valueOf(objects.size());
        objects.put(o, found);
      }
      return found.intValue();
    }
  }

  public boolean same(Object a, Object b) {
    return a.equals(b);
  }

  public static class Text {
    private final HashMap names = new HashMap();
    private final IdentityHashMap subqueries = new IdentityHashMap();
    private final Map functions;
    private int others = 0;

    public Text(SparkPlan node, String asked, Map functions) {
      this.functions = functions;
      String[] identities = asked.split(" ");
      scala.collection.Iterator each = node.subqueries().iterator();
      for (int i = 0; each.hasNext(); i++) subqueries.put(each.next(), identities[i]);
      for (int c = 0; c < node.children().size(); c++) {
        name(((SparkPlan) node.children().apply(c)).output(), c + ".");
      }
      name(node.output(), "o.");
    }

    private void name(scala.collection.Seq columns, String prefix) {
      for (int k = 0; k < columns.size(); k++) {
        Object id = ((Attribute) columns.apply(k)).exprId();
        if (!names.containsKey(id)) names.put(id, "$" + prefix + k);
      }
    }

    private String of(ExprId id) {
      Object known = names.get(id);
      if (known == null) {
        known = "?" + others++;
        names.put(id, known);
      }
      return (String) known;
    }

    public String of(Object o) {
      if (o == null) return "null";
      if (o instanceof ExprId) return of((ExprId) o);
      if (o instanceof Attribute) {
        String name = ((Attribute) o).name();  // Spark's own names have ids of the session in them
        return (name.indexOf('#') < 0 ? name : "") + of(((Attribute) o).exprId());
      }
      if (o instanceof NamedLambdaVariable) return "lambda" + of(((NamedLambdaVariable) o).exprId());
      if (o instanceof Literal) {
        Object value = ((Literal) o).value();
        String text = value instanceof byte[] ? Arrays.toString((byte[]) value) : String.valueOf(value);
        return "literal<" + ((Literal) o).dataType().json() + ">" + text.length() + ":" + text;
      }
      if (o instanceof ExecSubqueryExpression) {
        String child = o instanceof InSubqueryExec ? of(((InSubqueryExec) o).child()) : "";
        return "subquery(" + child + ";" + subqueries.get(((ExecSubqueryExpression) o).plan()) + ")";
      }
      if (o instanceof org.apache.spark.sql.types.DataType) return ((org.apache.spark.sql.types.DataType) o).json();
      if (o instanceof String) return ((String) o).length() + ":" + o;
      if (o instanceof Number || o instanceof Boolean || o instanceof Character || o instanceof Enum) {
        return o.toString();
      }
      if (o instanceof org.apache.spark.api.python.PythonFunction) {
        Object command = ((org.apache.spark.api.python.PythonFunction) o).command();
        if (!functions.containsKey(command)) functions.put(command, Integer.valueOf(functions.size()));
        return "python" + functions.get(command);
      }
      if (o instanceof org.apache.spark.sql.execution.datasources.HadoopFsRelation) {
        org.apache.spark.sql.execution.datasources.HadoopFsRelation files =
          (org.apache.spark.sql.execution.datasources.HadoopFsRelation) o;
        return "files(" + files.fileFormat().getClass().getName() + of(files.location().rootPaths())
          + of(files.options()) + files.dataSchema().json() + files.partitionSchema().json() + ")";
      }
      if (o instanceof org.apache.hadoop.fs.Path) return o.toString();
      if (o instanceof scala.collection.Map || o instanceof scala.collection.Set) {
        ArrayList all = new ArrayList();
        scala.collection.Iterator each = ((scala.collection.Iterable) o).iterator();
        while (each.hasNext()) all.add(of(each.next()));
        Collections.sort(all);
        return "set" + all;
      }
      if (o instanceof scala.collection.Iterable) {
        StringBuilder all = new StringBuilder("[");
        scala.collection.Iterator each = ((scala.collection.Iterable) o).iterator();
        while (each.hasNext()) all.append(of(each.next())).append(",");
        return all.append("]").toString();
      }
      if (o instanceof InternalRow) return o.toString();
      if (o instanceof And || o instanceof Or) return junction((Expression) o);
      if (o instanceof scala.Product) return product((scala.Product) o);
      String text = String.valueOf(o);
      String type = o.getClass().getName();
      int lambda = type.indexOf("$$Lambda");
      if (lambda >= 0) return type.substring(0, lambda);
      return text.matches("(?s).*@[0-9a-f]{4,}.*") ? type : text;
    }

    /** What AND or OR joins, in no order: Spark orders it by ids of the session, and where two parts of a plan differ
        in nothing else, it runs one of them for both. */
    private String junction(Expression whole) {
      ArrayList all = new ArrayList();
      operands(whole, whole.getClass(), all);
      Collections.sort(all);
      return whole.getClass().getSimpleName() + all;
    }

    private void operands(Object part, Class kind, ArrayList all) {
      if (part.getClass() != kind) {
        all.add(of(part));
        return;
      }
      scala.collection.Iterator each = ((Expression) part).children().iterator();
      while (each.hasNext()) operands(each.next(), kind, all);
    }

    public String product(scala.Product p) {
      StringBuilder all = new StringBuilder(p.productPrefix()).append("(");
      for (int i = 0; i < p.productArity(); i++) {
        Object part = p.productElement(i);
        if (part instanceof SparkPlan) continue;
        if (part instanceof org.apache.spark.sql.catalyst.plans.logical.LogicalPlan) continue;
        if (p instanceof FileSourceScanExec && filters((FileSourceScanExec) p, part)) {
          part = ((scala.collection.Iterable) part).toSet();
        }
        all.append(of(part)).append(";");
      }
      return all.append(")").toString();
    }

    private boolean filters(FileSourceScanExec scan, Object part) {
      return part == scan.dataFilters() || part == scan.partitionFilters();
    }
  }

  public static class Swap extends scala.runtime.AbstractPartialFunction {
    private final IdentityHashMap changed = new IdentityHashMap();

    public void put(Object before, Object after) {
      changed.put(before, after);
    }

    public boolean isDefinedAt(Object expression) {
      return replacement(expression) != null;
    }

    public Object applyOrElse(Object expression, scala.Function1 otherwise) {
      Object found = replacement(expression);
      return found != null ? found : otherwise.apply(expression);
    }

    private Object replacement(Object expression) {
      if (!(expression instanceof ExecSubqueryExpression)) return null;
      SparkPlan plan = (SparkPlan) ((ExecSubqueryExpression) expression).plan();
      if (plan.children().size() != 1) return null;
      Object after = changed.get(plan.children().head());
      if (after == null) return null;
      ArrayList one = new ArrayList();
      one.add(after);
      Object with = plan.withNewChildren(scala.collection.JavaConverters.asScalaBuffer(one).toList());
      return ((ExecSubqueryExpression) expression).withNewPlan((BaseSubqueryExec) with);
    }

    /** The rules that plan subqueries when a query is planned again while it runs, with the plans put here. */
    public scala.collection.immutable.Seq rules(scala.collection.immutable.Seq rules) {
      ArrayList all = new ArrayList();
      for (int i = 0; i < rules.size(); i++) {
        Object rule = rules.apply(i);
        if (rule instanceof PlanAdaptiveSubqueries) {
          scala.collection.immutable.Map plans = ((PlanAdaptiveSubqueries) rule).subqueryMap();
          scala.collection.Iterator each = plans.iterator();
          while (each.hasNext()) {
            scala.Tuple2 entry = (scala.Tuple2) each.next();
            Object after = changed.get(entry._2());
            if (after != null) plans = (scala.collection.immutable.Map) plans.updated(entry._1(), after);
          }
          rule = new PlanAdaptiveSubqueries(plans);
        }
        all.add(rule);
      }
      return scala.collection.JavaConverters.asScalaBuffer(all).toList();
    }
  }
}
"""

_compiled: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
_compiling = threading.Lock()


def java_aid(spark: SparkSession) -> Any:
    """The compiled class in the driver of ``spark``; compiled once."""
    gateway = spark.sparkContext._gateway
    with _compiling:
        found = _compiled.get(gateway)
        if found is None:
            jvm: Any = spark._jvm
            compiler = jvm.org.codehaus.janino.SimpleCompiler()
            compiler.setParentClassLoader(jvm.java.lang.Thread.currentThread().getContextClassLoader())
            compiler.cook(_SOURCE)
            found = compiler.getClassLoader().loadClass("headrace.Aid").newInstance()
            _compiled[gateway] = found
        return found
