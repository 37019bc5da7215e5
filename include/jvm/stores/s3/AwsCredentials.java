package tidemark;

import software.amazon.awssdk.auth.credentials.AwsCredentialsProvider;
import software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider;

/**
 * The credentials that the AWS SDK finds: environment, profile, web identity, role of the container
 * or machine. It renews temporary ones.
 *
 * <p>S3A closes the provider of a file system that it discards. The SDK's own `create()` returns one
 * provider for the whole process, which could then renew nothing.
 */
public final class AwsCredentials implements AwsCredentialsProvider {

    private final DefaultCredentialsProvider found = DefaultCredentialsProvider.builder().build();

    public static AwsCredentialsProvider create() {
        return new AwsCredentials();
    }

    public software.amazon.awssdk.auth.credentials.AwsCredentials resolveCredentials() {
        return found.resolveCredentials();
    }
}
