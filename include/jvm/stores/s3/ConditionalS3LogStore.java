package tidemark;

import io.delta.storage.S3SingleDriverLogStore;
import java.io.ByteArrayOutputStream;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.util.Iterator;
import java.util.UUID;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.s3a.AWSServiceIOException;

/**
 * Delta's log store for S3, with conditional writes: if two drivers commit one version, S3 refuses
 * the second.
 *
 * <p>Delta's own S3SingleDriverLogStore looks for the file before it writes, without a condition.
 * Delta's repository has a log store like this one (delta-io/delta #7369), not yet released.
 *
 * <p>build.py compiles this file with Janino, which has no generic types.
 */
public class ConditionalS3LogStore extends S3SingleDriverLogStore {

    private static final String WRITER = "tidemark-writer";
    private static final int ATTEMPTS = 10;

    public ConditionalS3LogStore(Configuration configuration) {
        super(configuration);
    }

    public void write(Path path, Iterator actions, Boolean overwrite, Configuration configuration)
            throws IOException {
        if (overwrite.booleanValue()) {
            super.write(path, actions, overwrite, configuration);
            return;
        }
        FileSystem files = path.getFileSystem(configuration);
        ByteArrayOutputStream content = new ByteArrayOutputStream();
        while (actions.hasNext()) {
            content.write(((String) actions.next()).getBytes(StandardCharsets.UTF_8));
            content.write('\n');
        }
        String writer = UUID.randomUUID().toString();
        int attempt = 1;
        while (!isCreated(files, path, content.toByteArray(), writer, attempt)) {
            attempt++;
        }
    }

    /** Return false if S3 refused the write for a concurrent one, and the file does not exist yet. */
    private static boolean isCreated(
            FileSystem files, Path path, byte[] content, String writer, int attempt)
            throws IOException {
        try {
            create(files, path, content, writer);
            return true;
        } catch (IOException failure) {
            // S3 may have stored the file although its answer was lost. The client then tries
            // again, and the condition refuses its own file.
            byte[] found = null;
            try {
                found = files.getXAttr(path, "header." + WRITER);
            } catch (FileNotFoundException missing) {
                if (isConflict(failure) && attempt < ATTEMPTS) {
                    return false;
                }
                throw failure;
            } catch (IOException unknown) {
                failure.addSuppressed(unknown);
                throw failure;
            }
            if (found == null || !writer.equals(new String(found, StandardCharsets.UTF_8))) {
                throw new FileAlreadyExistsException(path.toString());
            }
            return true;
        }
    }

    /** Return whether S3 refused a write because of another one in progress. */
    private static boolean isConflict(IOException failure) {
        return failure instanceof AWSServiceIOException
                && ((AWSServiceIOException) failure).statusCode() == 409;
    }

    private static void create(FileSystem files, Path path, byte[] content, String writer)
            throws IOException {
        FSDataOutputStream stream =
                (FSDataOutputStream) files.createFile(path)
                        .overwrite(true)
                        .recursive()
                        // S3 checks the condition when the stream is closed.
                        .must("fs.option.create.conditional.overwrite", "true")
                        .must("fs.s3a.create.header." + WRITER, writer)
                        .build();
        boolean complete = false;
        try {
            stream.write(content);
            complete = true;
        } finally {
            if (!complete) {
                // Closing an incomplete stream would create the file.
                stream.abort();
            }
        }
        stream.close();
    }
}
